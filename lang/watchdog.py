"""A time limit for many calls with one timer, for `asyncio.timeout` costs a timer a call.

Cancels the task whose call took too long. Knows tasks only; used by `run`, on one event loop.
"""

from __future__ import annotations

import asyncio


class Watchdog:
    """Tasks that began something and must end it within `limit` seconds."""

    def __init__(self, limit: float) -> None:
        """Watches nothing yet."""
        self.limit = limit
        self._began: dict[asyncio.Task[None], float] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[None]) -> None:
        """The task begins a call."""
        loop = asyncio.get_running_loop()
        self._began[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.limit, self._look)

    def end(self, task: asyncio.Task[None]) -> None:
        """The call is over, whichever way."""
        self._began.pop(task, None)

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
        self._began.clear()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for task, began in list(self._began.items()):
            if now - began >= self.limit:
                self.end(task)
                self._late.add(task)
                task.cancel()
        self._timer = None
        if self._began:
            wait = min(self._began.values()) + self.limit - now
            self._timer = loop.call_later(wait, self._look)
