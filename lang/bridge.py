"""Plain `def` bodies on an event loop: a body runs in a greenlet and steps aside where it waits.

No thread a program: while a body waits, the loop runs other programs. Knows nothing of programs.
Called by `program` (drive), `state`, `branches` and `shell` (wait).
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

T = TypeVar("T")


class _Body(greenlet):  # type: ignore[misc]
    """Marks the greenlets that `drive` looks after."""


def inside() -> bool:
    """True where `wait` may be called: in a `def` body that `drive` runs."""
    return isinstance(getcurrent(), _Body)


def wait(awaitable: Awaitable[T]) -> T:
    """Step aside until `awaitable` is done; its result, or its exception raised here."""
    body = getcurrent()
    assert isinstance(body, _Body), "bridge.wait outside a body"
    parent = body.parent
    assert parent is not None
    result: T = parent.switch(awaitable)
    return result


async def drive(function: Callable[[], T]) -> T:
    """Run `function` to its end on this task, awaiting what it waits for.

    Cancelling the task raises `asyncio.CancelledError` in the body, where it waits.
    """
    body = _Body(function)
    body.gr_context = contextvars.copy_context()
    try:
        out: Any = body.switch()
        while not body.dead:
            try:
                value = await out
            except BaseException as error:
                # The task may be resumed from another greenlet than the one that made the body.
                body.parent = getcurrent()
                out = body.throw(error)
            else:
                body.parent = getcurrent()
                out = body.switch(value)
        result: T = out
        return result
    finally:
        if not body.dead:
            body.throw(GreenletExit)
