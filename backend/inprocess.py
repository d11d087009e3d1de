"""An EnginePort over an engine loop on a thread of this process.

Callers live on any number of event loops; the engine thread hands each loop its updates of a step
in one call. Knows nothing of text or tensors. Made by `build.py`, used by `text/frontend.py`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress

from ..lang.errors import DuplicateRequest, EngineClosed
from .engine import EngineLoop, Runner
from .port import Command, Job, Reply, Update
from .sched.scheduler import Scheduler

log = logging.getLogger("branchwork.engine")

CONTROL_TIMEOUT = 60.0  # seconds; a command waits for one model step at most
CLOSE_TIMEOUT = 60.0


class _QuickSwitching:
    """While an engine of this process computes, threads hand the interpreter over sooner.

    A plain-torch step is a thousand small calls, and after each the engine thread must win the
    interpreter back. Beside a thread that never rests it waits out the switch interval every time:
    with CPython's 5 ms that took 10 s a token, with 0.1 ms a fraction of one (docs/performance.md).
    """

    SECONDS = 1e-4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._engines += 1
            if self._engines == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, self.SECONDS))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._engines -= 1
            if self._engines == 0:
                sys.setswitchinterval(self._before)


_quick_switching = _QuickSwitching()  # the interval belongs to the process, so does this


class _Listener:
    """Where one job's updates go: a queue on the event loop of whoever asked."""

    __slots__ = ("loop", "queue")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Update] = asyncio.Queue()  # bounded by the job's max_tokens


class InProcessPort:
    """Runs the loop on a daemon thread. Use `aclose` (or `close`) to stop it."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        """Starts the thread at once."""
        self._engine = EngineLoop(scheduler, runner, self._deliver)
        self._listeners: dict[str, _Listener] = {}
        # Guards _listeners and _closed. Reentrant: a garbage collection under it may call close().
        self._lock = threading.RLock()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="branchwork-engine", daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> AsyncIterator[Update]:
        """See `port.EnginePort.submit`."""
        listener = _Listener()
        with self._lock:
            if job.id in self._listeners:
                raise DuplicateRequest(
                    f"a request with id {job.id!r} is still live; choose another id or wait"
                )
            self._post(lambda: self._engine.submit(job))
            self._listeners[job.id] = listener
        ended = False
        try:
            while not ended:
                update = await listener.queue.get()
                ended = update.end is not None
                yield update
        finally:
            if not ended:
                self._cancel(job.id)

    async def control(self, command: Command) -> Reply:
        """See `port.EnginePort.control`. Raises `TimeoutError` after a minute."""
        future: Future[Reply] = Future()

        def answer() -> None:
            try:
                future.set_result(self._engine.control(command))
            except Exception as error:  # handed to the asker
                future.set_exception(error)

        with self._lock:
            self._post(answer)
        return await asyncio.wait_for(asyncio.wrap_future(future), CONTROL_TIMEOUT)

    async def aclose(self) -> None:
        """End all jobs and stop the thread. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Blocking form of `aclose`."""
        with self._lock:
            self._closed = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT)
            if self._thread.is_alive():
                log.error("the engine thread did not stop within %.0f s", CLOSE_TIMEOUT)

    # -- engine thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed:
                self._drain_inbox()
                if self._engine.idle:
                    self._wake.wait()
                    self._wake.clear()
                else:
                    with _quick_switching:
                        self._engine.turn()
        except BaseException:
            log.exception("the engine loop broke")
            raise
        finally:
            with self._lock:
                self._closed = True
            self._drain_inbox()  # what was posted before the close is answered by it
            self._engine.close()

    def _drain_inbox(self) -> None:
        for _ in range(len(self._inbox)):  # what is posted meanwhile waits for the next turn
            self._inbox.popleft()()

    def _post(self, act: Callable[[], None]) -> None:
        """Have the engine thread do `act` before its next step. Call with the lock held.

        Nothing gets in after the close, so the thread's last look at the inbox really is the last.
        """
        if self._closed:
            raise EngineClosed("the engine is closed; make a new one")
        self._inbox.append(act)
        self._wake.set()

    def _cancel(self, job_id: str) -> None:
        """The listener stays until the engine confirms the end, so the id stays taken."""
        with self._lock, suppress(EngineClosed):
            self._post(lambda: self._engine.cancel(job_id))

    def _deliver(self, updates: list[Update]) -> None:
        """Group by event loop and hand over; a loop that is gone loses its jobs, nobody else's."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Listener, Update]]] = {}
        with self._lock:
            for update in updates:
                listener = self._listeners.get(update.id)
                if listener is None:
                    continue
                if update.end is not None:
                    del self._listeners[update.id]
                by_loop.setdefault(listener.loop, []).append((listener, update))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_hand_over, batch)
            except RuntimeError:  # the loop was closed under its jobs
                for _, update in batch:
                    if update.end is None:
                        self._cancel(update.id)


def _hand_over(batch: list[tuple[_Listener, Update]]) -> None:
    for listener, update in batch:
        listener.queue.put_nowait(update)
