"""Engines without a model: the real port, scheduler and cache over the fake runner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byte_tokenizer import IM_END, byte_tokenizer
from fake_runner import FakeRunner

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.inprocess import InProcessPort
from branchwork.backend.port import ReadStats, Stats
from branchwork.backend.sched.scheduler import Scheduler
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.stops import watch_factory
from branchwork.lang import shell
from branchwork.lang.errors import EngineClosed
from branchwork.radix.cache import PrefixCache

LETTERS = (*b"abcdefghij ", IM_END)


@dataclass
class Fake:
    client: Frontend
    port: InProcessPort
    scheduler: Scheduler
    cache: PrefixCache
    runner: FakeRunner

    async def when_idle(self) -> Stats:
        """Counters once no job is live: cancelled ones end before the engine's next step."""
        for _ in range(10_000):
            stats = (await self.port.control(ReadStats())).stats
            if not stats.running and not stats.waiting:
                return stats
        raise AssertionError(f"jobs are still live: {stats}")


@contextlib.contextmanager
def fake_engine(
    n_pages: int = 400,
    config: SchedulerConfig | None = None,
    letters: Sequence[int] = LETTERS,
) -> Iterator[Fake]:
    """An engine that must have let go of everything at the end."""
    config = config or SchedulerConfig(page_size=4, max_running=6, step_tokens=200)
    tokenizer = byte_tokenizer()
    cache = PrefixCache(n_pages, config.page_size)
    runner = FakeRunner(n_pages, config.page_size, letters)
    scheduler = Scheduler(cache, config, watch_factory(tokenizer))
    port = InProcessPort(scheduler, runner)
    fake = Fake(
        Frontend(port, tokenizer, ChatFormat.of(tokenizer), 100_000), port, scheduler, cache, runner
    )
    try:
        yield fake
        try:
            stats = shell.run(fake.when_idle)
        except EngineClosed:  # by the test: the thread is gone, nobody else counts
            stats = scheduler.stats()
        cache.audit()
        assert stats.leased_pages == 0
        assert stats.free_pages + stats.cached_pages == stats.total_pages
    finally:
        port.close()
    assert runner.closed
