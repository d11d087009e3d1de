"""The blocking shell: run a coroutine to its end from code that is not async.

Works with or without a running loop in the calling thread, and inside a program's body. Ctrl-C
cancels the work, waits until it has let go of what it held, and raises `KeyboardInterrupt`.
Knows nothing of programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
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
    done: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await make()

    def work() -> None:
        try:
            with asyncio.Runner() as runner:
                result = runner.run(main())
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="branchwork-run", daemon=True)
    thread.start()
    # Not thread.join: interrupted by Ctrl-C, it takes the thread for ended (CPython 3.11).
    try:
        while not futures.wait([done], POLL_S).done:
            pass
    except BaseException:
        loop, task = started.result(CANCEL_S)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile: all is done
            loop.call_soon_threadsafe(task.cancel)
        futures.wait([done], CANCEL_S)
        raise
    return done.result(0)
