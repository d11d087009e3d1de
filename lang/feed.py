"""What a run says while it says it, for one listener.

The run asks for an ear for each piece it is about to say and speaks into it; the listener takes
deltas out. A listener that lags gets longer deltas, never a longer queue than the run has calls.
Knows no run and no client. Made by `stream`, filled by `run`, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from .place import Place

Ear = Callable[[str], None]


class TextDelta(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A piece of text as it came.

    `name` is the call it belongs to, None for the program's own text, roles and calls without a
    name. `branch` is () for the program's main line, else the number of the fork and of the branch
    in it, a pair a level. Joined in order, the deltas of the main line are its `state.text()`.
    """

    text: str
    name: str | None = None
    branch: tuple[int, ...] = ()


class Feed:
    """Deltas waiting to be taken. `only`: the one variable to hear; `branches`: forks too."""

    def __init__(self, only: str | None = None, branches: bool = False) -> None:
        """Nothing said yet. Needs no running loop yet."""
        self._only = only
        self._branches = branches
        self._waiting: deque[_Piece] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._ended = False
        self.found = False
        """Whether anything was said that the listener wants, be it empty."""

    def ear(self, place: Place, name: str | None) -> Ear | None:
        """Where to say the text of one call, or one piece of the program's own; None: not heard."""
        if self._only is not None and name != self._only:
            return None
        if place.parent is not None and not self._branches:
            return None
        self.found = True
        path = place.path()
        piece = _Piece(name, path)

        def hear(text: str) -> None:
            nonlocal piece
            if not text:
                return
            if piece.parts is None:  # taken already
                piece = _Piece(name, path)
            if not piece.parts:
                self._waiting.append(piece)
            assert piece.parts is not None
            piece.parts.append(text)
            self._wake()

        return hear

    def span(self, place: Place, name: str, text: str) -> None:
        """A span has ended. Its text was said before, but not to who listens to its name alone."""
        if self._only is not None:
            ear = self.ear(place, name)
            if ear is not None:
                ear(text)

    def end(self) -> None:
        """Nothing more will be said."""
        self._ended = True
        self._wake()

    async def take(self) -> TextDelta | None:
        """The next delta; None at the end. One taker at a time."""
        while not self._waiting:
            if self._ended:
                return None
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        piece = self._waiting.popleft()
        text = "".join(piece.parts or ())
        piece.parts = None
        return TextDelta(text=text, name=piece.name, branch=piece.branch)

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)


class _Piece:
    """Text of one call that waits to be taken; `parts` is None once it was."""

    __slots__ = ("branch", "name", "parts")

    def __init__(self, name: str | None, branch: tuple[int, ...]) -> None:
        self.name = name
        self.branch = branch
        self.parts: list[str] | None = []
