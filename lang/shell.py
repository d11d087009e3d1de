"""The blocking shell: run a coroutine to its end from code that is not async.

Works with or without a running loop in the calling thread, and inside a program's body. Ctrl-C
cancels the work, waits until it has let go of what it held, and raises `KeyboardInterrupt`.
Knows nothing of programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

from . import bridge

T = TypeVar("T")

POLL_S = 0.2
"""How long one wait for the worker thread lasts; the waits repeat until the work is done."""
CANCEL_S = 30.0
"""How long cancelled work may take to let go before we stop waiting for it."""


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Result of the coroutine `make()` returns.

    Without a running loop it runs in this thread (so a body may use what belongs to the thread, and
    a debugger); with one, on a loop of its own in a thread of its own; in a body, on the body's
    loop.
    """
    if bridge.inside():
        return bridge.wait(make())
    if _loop_runs_here():
        return _in_thread(make)
    with asyncio.Runner() as runner:
        return runner.run(make())


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with Session() as session:
        return session.run(make)


class _Caller:
    """The task that is blocked while another loop works for it, if this thread runs a loop."""

    def __init__(self) -> None:
        self._task = asyncio.current_task() if _loop_runs_here() else None
        self._before = self._task.cancelling() if self._task else 0

    def check(self) -> None:
        """Raise if the task was cancelled meanwhile; `asyncio.run` so tells it of Ctrl-C."""
        if self._task is not None and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


class Session:
    """A loop for coroutines that are run one after the other; what they began goes on in between.

    The loop has a thread of its own; in a body it is the body's. Closing cancels what still runs
    and waits for it.
    """

    def __init__(self) -> None:
        """The loop runs at once."""
        self._in_body = bridge.inside()
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._over: Future[None] = Future()
        if not self._in_body:
            thread = threading.Thread(target=self._serve, name="branchwork-run", daemon=True)
            thread.start()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Result of the coroutine `make()` returns. Ctrl-C cancels it."""
        if self._in_body:
            return bridge.wait(make())
        loop, _ = self._ready.result(CANCEL_S)
        started = _Started(loop, make())
        ends: list[Future[Any]] = [started.done, self._over]
        caller = _Caller()
        try:  # Ctrl-C may come at any point from here on
            started.begin()
            # Not thread.join: interrupted by Ctrl-C, it takes the thread for ended (CPython 3.11).
            while not futures.wait(ends, POLL_S, futures.FIRST_COMPLETED).done:
                caller.check()
        except BaseException:
            started.cancel()
            futures.wait(ends, CANCEL_S, futures.FIRST_COMPLETED)
            raise
        if not started.done.done():
            self._over.result(0)  # raises what ended the loop
        result: T = started.done.result(0)
        return result

    def finish(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """As `run`, for cleaning up: nothing where the loop or the body has ended already."""
        if bridge.inside() if self._in_body else not self._over.done():
            self.run(make)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._in_body:
            loop, stop = self._ready.result(CANCEL_S)
            with contextlib.suppress(RuntimeError):  # the loop has closed already
                loop.call_soon_threadsafe(stop.set)
            futures.wait((self._over,), CANCEL_S)

    def _serve(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except BaseException as error:
            self._over.set_exception(error)
        else:
            self._over.set_result(None)

    async def _main(self) -> None:
        stop = asyncio.Event()
        self._ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()


class _Started:
    """A coroutine on another thread's loop. `done` comes when it has ended, cancelled or not.

    (The future of `run_coroutine_threadsafe` is done as soon as its cancelling was asked for.)
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self.done: Future[Any] = Future()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Have the loop start it."""
        self._loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: all is done
            self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # broken off before it began
            self._work.close()
            self.done.set_exception(asyncio.CancelledError())

    def _settle(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.done.set_result(task.result())
        else:
            self.done.set_exception(error)
