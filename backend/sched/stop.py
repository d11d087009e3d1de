"""What the scheduler must know of stop strings: nothing but this protocol.

The text room implements it (`text/stops.py`), the composition root hands a factory in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class StopWatch(Protocol):
    """Reads one sequence's drawn tokens and tells when their text holds a stop string."""

    def push(self, token_id: int) -> str | None:
        """Take the next drawn token; the stop string that is now complete, or None."""
        ...


# (stop strings, ids of the prompt, which may end within a character, how many drawn tokens come
# first that no stop string ends) -> watch
WatchFactory = Callable[[tuple[str, ...], Sequence[int], int], StopWatch]
