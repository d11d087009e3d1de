"""Where in a program something stands: its line ("file.py:12") and its branch.

Knows only the name of this package. Lines are asked for by `dsl` and `state`, branches by `run`.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType

_OWN = __name__.rpartition(".")[0] + "."


def where() -> str:
    """File and line of the innermost frame outside this package; "" if there is none.

    Walks frames: about a microsecond, once a statement.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{_basename(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.lru_cache(maxsize=1024)
def _basename(path: str) -> str:
    return os.path.basename(path)


class Place:
    """One branch's place in the tree of a run: branch `index` of its parent's fork number `fork`.

    Linked, not a tuple, so that a chain of n forks costs n places and not n squared.
    """

    __slots__ = ("fork", "index", "parent", "scratch")

    def __init__(
        self, parent: Place | None = None, fork: int = 0, index: int = 0, scratch: bool = False
    ) -> None:
        """The root without arguments."""
        self.parent = parent
        self.fork = fork
        self.index = index
        self.scratch = scratch

    def path(self) -> tuple[int, ...]:
        """Fork and branch number a level from the root on; () for the root."""
        return tuple(n for place in self._line() for n in (place.fork, place.index))

    def label(self) -> str:
        """As people read it: "[1][copy]"; "" for the root."""
        return "".join("[copy]" if each.scratch else f"[{each.index}]" for each in self._line())

    def _line(self) -> list[Place]:
        line = []
        place = self
        while place.parent is not None:
            line.append(place)
            place = place.parent
        return line[::-1]
