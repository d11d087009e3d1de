"""A time limit for many calls with one timer, for `asyncio.timeout` costs a timer a call.

Cancels the task whose call took too long. Knows tasks only; used by `run`, on one event loop.
"""

from __future__ import annotations

import asyncio


class Watchdog:
    """Tasks that began something and must end it within a number of seconds each."""

    def __init__(self) -> None:
        """Watches nothing yet."""
        self._until: dict[asyncio.Task[None], float] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[None], limit: float) -> None:
        """The task begins a call that may take `limit` seconds."""
        loop = asyncio.get_running_loop()
        until = self._until[task] = loop.time() + limit
        if self._timer is None or until < self._timer.when():
            self._ring(loop, until)

    def end(self, task: asyncio.Task[None]) -> None:
        """The call is over, whichever way."""
        self._until.pop(task, None)

    def was_late(self, task: asyncio.Task[None]) -> bool:
        """True once for a task that was cancelled for being late: takes that cancellation back."""
        if task not in self._late:
            return False
        self._late.discard(task)
        return task.uncancel() == 0

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._until.clear()

    def _ring(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(until, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for task, until in list(self._until.items()):
            if now >= until:
                self.end(task)
                self._late.add(task)
                task.cancel()
        self._timer = None
        if self._until:
            self._ring(loop, min(self._until.values()))
