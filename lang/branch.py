"""What one branch of a run knows: its prompt so far, its names, its work still to do.

Two ends: the *front* is where the program appends (names, open role), the *back* is where `run` has
come to (prompt segments, what was said). Plain data with the moves on it; no client, no tasks of
its own. Copied on fork. Used by `run` and `state` alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from . import ir
from . import request as wire
from .errors import ProgramError
from .place import Place
from .slot import Slot

Said = wire.Text | wire.RoleStart | wire.RoleEnd
Work = tuple[ir.Node, Slot | None, "tuple[Branch, ...]"]


class Branch:
    """One line of text being built.

    `own` holds the names bound since the fork, `fresh` those bound
    since the last join. `last` is the newest call: once it is done, everything before it is.
    """

    __slots__ = (
        "cancelled",
        "children",
        "error",
        "fresh",
        "last",
        "n_calls",
        "n_forks",
        "nodes",
        "own",
        "place",
        "queue",
        "role",
        "said",
        "segments",
        "slots",
        "spans",
        "started",
        "task",
        "text",
    )

    def __init__(self, place: Place) -> None:
        """An empty branch that has not started."""
        self.place = place
        # front: what the program has appended
        self.role: str | None = None
        self.nodes: list[ir.Node] = []
        self.slots: dict[str, Slot] = {}
        self.own: dict[str, Slot] = {}
        self.fresh: dict[str, None] = {}
        self.last: Slot | None = None
        self.n_calls = 0
        self.n_forks = 0
        self.children: list[Branch] = []
        # back: what has been executed
        self.segments: list[wire.Segment] = []
        self.text: list[str] = []
        self.said: list[Said] = []
        self.spans: dict[Slot, int] = {}  # open ones, and how much was said before
        # work between the two; the first item is in progress while `task` lives
        self.queue: deque[Work] = deque()
        self.task: asyncio.Task[None] | None = None
        self.started = False
        self.cancelled = False
        self.error: ProgramError | None = None

    def child(self, index: int, scratch: bool) -> Branch:
        """A branch that will start where this one's front is now. Copies names, not text."""
        twig = Branch(Place(self.place, self.n_forks, index, scratch))
        twig.role = self.role
        twig.slots = dict(self.slots)
        twig.last = self.last
        twig.error = self.error
        self.children.append(twig)
        return twig

    def start_at(self, parent: Branch) -> None:
        """Take over the parent's executed text. Copies references only."""
        self.segments = list(parent.segments)
        self.text = list(parent.text)
        self.said = list(parent.said)
        self.started = True

    def bind(self, name: str, slot: Slot) -> None:
        """Give a name its newest slot."""
        self.slots[name] = slot
        self.own[name] = slot
        self.fresh[name] = None

    def say(self, text: str) -> None:
        """Text is executed: it coalesces with its neighbours until a call or role commits it."""
        self.text.append(text)
        self.said.append(wire.Text(text))

    def since(self, span: Slot) -> str:
        """What was said since the span's start, which is forgotten."""
        return shown(self.said[self.spans.pop(span) :])

    def mark(self, marker: wire.RoleStart | wire.RoleEnd) -> None:
        """A role opens or ends."""
        self._flush()
        self.segments.append(marker)
        self.said.append(marker)

    def prompt(self) -> tuple[wire.Segment, ...]:
        """Commit the text and return all segments."""
        self._flush()
        return tuple(self.segments)

    def adopt(self, finish: wire.Finish) -> None:
        """Continue after a call, token for token (`request`, module docstring)."""
        self.segments = [finish.prompt]
        if finish.kept.ids:
            self.segments.append(finish.kept)
        if finish.tail:
            self.text.append(finish.tail)
        if finish.text:
            self.said.append(wire.Text(finish.text))

    def _flush(self) -> None:
        if self.text:
            self.segments.append(wire.Text("".join(self.text)))
            self.text.clear()


def shown(pieces: Iterable[Said]) -> str:
    """To be read by people: each message as "role: content" on its own line."""
    parts = []
    for piece in pieces:
        if isinstance(piece, wire.Text):
            parts.append(piece.text)
        else:
            parts.append(f"{piece.role}: " if isinstance(piece, wire.RoleStart) else "\n")
    return "".join(parts)


def subtree(branch: Branch) -> list[Branch]:
    """The branch and all that were forked from it, parents first. Not recursive."""
    found = [branch]
    for each in found:
        found.extend(each.children)
    return found
