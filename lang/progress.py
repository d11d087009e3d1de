"""How far a batch has come, on stderr: a bar on a terminal, a line now and then elsewhere.

Knows counts only. Used by `batch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 10
"""How many lines a whole batch writes where there is no terminal."""

Tick = Callable[[bool], None]


@contextmanager
def progress_of(total: int, wanted: bool) -> Iterator[Tick]:
    """Gives a function to call once a program: with True if it has failed."""
    if not wanted:
        yield lambda failed: None
        return
    console = Console(stderr=True)
    count = _Count(total)
    if not console.is_terminal:
        yield count.write
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("programs", total=total)

        def tick(failed: bool) -> None:
            count.add(failed)
            bar.update(task, advance=1, description=f"programs{count.failures}")

        yield tick


class _Count:
    """Counts, and writes the tenths."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._failed = 0

    @property
    def failures(self) -> str:
        return f" ({self._failed} failed)" if self._failed else ""

    def add(self, failed: bool) -> None:
        self._done += 1
        self._failed += failed

    def write(self, failed: bool) -> None:
        before = self._done * LINES // self._total
        self.add(failed)
        if self._done * LINES // self._total > before:
            sys.stderr.write(f"{self._done}/{self._total} programs{self.failures}\n")
            sys.stderr.flush()
