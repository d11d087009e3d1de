"""A run whose text is handed out while it comes.

Knows a run only as something to start with a feed. Made by `program.stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from .errors import ProgramError
from .feed import Feed, TextDelta
from .iteration import Iteration
from .state import State


class Stream(Iteration[TextDelta]):
    """Deltas of one run; iterate over it once, with `for` or with `async for`.

    The run begins with the first step. At its end it raises what `run` would have raised. Leaving
    the loop early cancels the run and frees what it held.
    """

    def __init__(
        self, start: Callable[[Feed], Coroutine[Any, Any, State]], only: str | None, branches: bool
    ) -> None:
        """Made by `program.stream`. `only` and `branches`: see there."""
        super().__init__(self._deltas)
        self._start = start
        self._only = only
        self._branches = branches
        self.state: State | None = None
        """What `run` would have returned, once the run has come to its end; None before."""

    async def _deltas(self) -> AsyncGenerator[TextDelta, None]:
        feed = Feed(self._only, self._branches)
        task = asyncio.create_task(_held_back(self._start(feed)))
        task.add_done_callback(lambda _: feed.end())
        try:
            while (delta := await feed.take()) is not None:
                yield delta
            state = await task
            if isinstance(state, BaseException):
                raise state
            if self._only is not None and not feed.found:
                raise _never_said(self._only, state, self._branches)
            self.state = state
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # seen; it was raised above, or nobody is left to hear it


async def _held_back(run: Coroutine[Any, Any, State]) -> State | BaseException:
    """The run; what asks the interpreter to leave is handed over, not raised.

    Raised in a task it would end the loop before the listener hears of it.
    """
    try:
        return await run
    except (SystemExit, KeyboardInterrupt) as leaving:
        return leaving


def _never_said(name: str, state: State, branches: bool) -> ProgramError:
    made = ", ".join(map(repr, state.names())) or "none"
    hint = "" if branches else "; branches=True listens to forks too"
    return ProgramError(
        f"no call or span called {name!r} was made, so there was nothing to stream; names bound: "
        f"{made}{hint}",
        call=name,
    )
