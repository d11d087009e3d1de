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

POLL_S = 1.0
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
        future = asyncio.run_coroutine_threadsafe(make(), loop)
        ends: list[Future[Any]] = [future, self._over]
        try:
            # Not thread.join: interrupted by Ctrl-C, it takes the thread for ended (CPython 3.11).
            while not futures.wait(ends, POLL_S, futures.FIRST_COMPLETED).done:
                pass
        except BaseException:
            future.cancel()
            raise
        if not future.done():
            self._over.result(0)  # raises what ended the loop
        return future.result(0)

    def finish(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """As `run`, for cleaning up: nothing where the body has been left already."""
        if not self._in_body or bridge.inside():
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
