"""Drives a scheduler with the fake runner, step by step, without threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fake_runner import FakeRunner

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.port import End, Job, Trie, Update
from branchwork.backend.sched.scheduler import Scheduler
from branchwork.backend.sched.stop import StopWatch
from branchwork.radix.cache import PrefixCache
from branchwork.radix.key import pack

MAX_STEPS = 20_000


def job(name: str, prompt: Sequence[int], max_tokens: int = 4, **more: object) -> Job:
    fields: dict[str, object] = {"seed": 0, **more}
    return Job(id=name, prompt=pack(prompt), max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def trie(paths: Sequence[Sequence[int]], method: str = "total") -> Trie:
    """A token trie of whole paths; every node of a path is kept."""
    tokens: list[int] = []
    parents: list[int] = []
    index: dict[tuple[int, ...], int] = {}
    for path in paths:
        for end in range(1, len(path) + 1):
            head = tuple(path[:end])
            if head not in index:
                index[head] = len(tokens)
                tokens.append(path[end - 1])
                parents.append(index.get(head[:-1], -1))
    nodes = tuple(tuple(index[tuple(p[:e])] for e in range(1, len(p) + 1)) for p in paths)
    kept = tuple(len(p) for p in paths)
    return Trie(tokens=tuple(tokens), parents=tuple(parents), paths=nodes, kept=kept, method=method)


class TokenWatch:
    """Stop "strings" for ints: the decimal name of a token stops at that token."""

    def __init__(self, stops: tuple[str, ...], min_tokens: int) -> None:
        self._stops = set(stops)
        self._n_free = min_tokens

    def push(self, token_id: int) -> str | None:
        self._n_free -= 1
        hit = self._n_free < 0 and str(token_id) in self._stops
        return str(token_id) if hit else None


def watch(stops: tuple[str, ...], _prompt: Sequence[int], min_tokens: int) -> StopWatch:
    return TokenWatch(stops, min_tokens)


@dataclass
class Driver:
    """One scheduler over one fake runner; collects what comes out."""

    n_pages: int = 64
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    vocab: Sequence[int] = range(50)

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.n_pages, self.config.page_size)
        self.runner = FakeRunner(self.n_pages, self.config.page_size, self.vocab)
        self.scheduler = Scheduler(self.cache, self.config, watch)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, End] = {}
        self.first_step: dict[str, int] = {}

    def add(self, *jobs: Job) -> None:
        for one in jobs:
            self.scheduler.add(one)
            self.tokens[one.id] = []

    def cancel(self, name: str) -> None:
        update = self.scheduler.cancel(name)
        self._collect([] if update is None else [update])

    def step(self) -> bool:
        """One plan, one result. False when there was nothing to plan."""
        plan = self.scheduler.plan()
        if plan is None:
            assert self.scheduler.idle, "jobs are live but nothing was planned"
            return False
        try:
            result = self.runner.sample(self.runner.forward(plan))
        except RuntimeError as error:
            self._collect(self.scheduler.fail(plan, error))
        else:
            self._collect(self.scheduler.apply(plan, result))
        self.cache.audit()
        return True

    def run(self, each_step: Callable[[int], None] = lambda _step: None) -> int:
        """Step until idle; the number of steps. `each_step` may add or cancel before each."""
        for step in range(MAX_STEPS):
            each_step(step)
            if not self.step():
                return step
        raise AssertionError("the schedule did not come to an end")

    def _collect(self, updates: Iterable[Update]) -> None:
        for update in updates:
            assert update.id not in self.ends, "news of a job after its end"
            self.tokens[update.id].extend(update.tokens)
            if update.tokens:
                self.first_step.setdefault(update.id, self.runner.steps)
            if update.end is not None:
                self.ends[update.id] = update.end

    def assert_all_pages_back(self) -> None:
        stats = self.scheduler.stats()
        assert stats.running == stats.waiting == stats.leased_pages == 0
        assert stats.free_pages + stats.cached_pages == stats.total_pages
