"""A scripted EnginePort: the next token is a function of the ids so far. No threads, no model.

port = FakePort(follow(b"hello<end>", end=257))
port = FakePort(lambda ids: ids[-1] + 1)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from branchwork.backend.port import Command, End, EnginePort, Job, Peek, Reply, Stats, Update
from branchwork.backend.sched.stop import WatchFactory
from branchwork.lang.choose import pick
from branchwork.lang.errors import BranchworkError, EngineClosed, to_wire
from branchwork.radix.key import unpack

Script = Callable[[Sequence[int]], int]
Score = Callable[[Sequence[int], int], float]

TOP = ((ord("q"), -0.1), (0xF0, -2.0), (ord("z"), -3.0))
"""The likeliest tokens at every position."""


def even_score(ids: Sequence[int], token: int) -> float:
    """A log-probability that depends on position and token only, never twice the same in a test."""
    return -1.0 - ((len(ids) * 31 + token * 17) % 101) / 101


def follow(tokens: Sequence[int], end: int) -> Script:
    """Draw `tokens` one by one after the first prompt seen, whatever it is, then `end` for ever."""
    starts: list[int] = []

    def script(ids: Sequence[int]) -> int:
        if not starts:
            starts.append(len(ids))
        n = len(ids) - starts[0]
        return tokens[n] if 0 <= n < len(tokens) else end

    return script


class FakePort(EnginePort):
    """Draws by `script`, `per_update` tokens an update. Records what was asked and cancelled."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        score: Score = even_score,
        per_update: int = 1,
        watch: WatchFactory | None = None,
        fail: BranchworkError | None = None,
    ) -> None:
        self.script = script or (lambda ids: 0)
        self.score = score
        self.per_update = per_update
        self.watch = watch
        self.fail = fail
        self.jobs: list[Job] = []
        self.prompts: list[list[int]] = []
        self.live: set[str] = set()
        self.cancelled: list[str] = []
        self.closed = False

    async def submit(self, job: Job) -> AsyncIterator[Update]:
        self.jobs.append(job)
        prompt = unpack(job.prompt)
        earlier = max((_common(prompt, other) for other in self.prompts), default=0)
        self.prompts.append(prompt)
        cached = min(earlier, len(prompt) - 1)
        self.live.add(job.id)
        finished = False
        try:
            for update in self._updates(job, prompt, cached):
                finished = update.end is not None
                await asyncio.sleep(0)
                yield update
        finally:
            self.live.discard(job.id)
            if not finished:
                self.cancelled.append(job.id)

    def _updates(self, job: Job, prompt: list[int], cached: int) -> Iterator[Update]:
        if self.closed or self.fail is not None:
            error = to_wire(self.fail or EngineClosed("the engine is closed"))
            yield Update(id=job.id, end=End(reason="error", error=error))
            return
        logprobs = self._prompt_logprobs(job, prompt)
        if job.trie is not None:
            nodes = self._node_logprobs(job, prompt)
            trie = job.trie
            paths = [[nodes[i] for i in path] for path in trie.paths]
            winner = pick(trie.method, paths, trie.n_bytes, trie.priors)
            computed = len(prompt) - cached + len(job.trie.tokens)
            end = End(
                reason="stop",
                prompt_logprobs=logprobs,
                node_logprobs=nodes,
                winner=winner,
                cached_tokens=cached,
                computed_tokens=computed,
            )
            yield Update(id=job.id, end=end)
            return
        drawn, scored, reason = self._draw(job, prompt)
        end = End(
            reason=reason,
            prompt_logprobs=logprobs,
            cached_tokens=cached,
            computed_tokens=len(prompt) - cached + len(drawn),
        )
        for n in range(0, max(len(drawn), 1), self.per_update):
            last = n + self.per_update >= len(drawn)
            part = slice(n, n + self.per_update)
            yield Update(
                id=job.id,
                tokens=tuple(drawn[part]),
                logprobs=tuple(scored[part]),
                top_logprobs=((TOP[: job.top_logprobs],) if job.top_logprobs else ())
                * len(drawn[part]),
                end=end if last else None,
            )

    def _draw(self, job: Job, prompt: list[int]) -> tuple[list[int], list[float], str]:
        drawn: list[int] = []
        scored: list[float] = []
        watch = None
        if self.watch and job.stop:
            watch = self.watch(job.stop, unpack(job.prompt), job.min_tokens)
        while len(drawn) < job.max_tokens:
            ids = [*prompt, *drawn]
            token = self.script(ids)
            drawn.append(token)
            if job.logprobs:
                scored.append(self.score(ids, token))
            if token in job.end_ids or (watch is not None and watch.push(token)):
                return drawn, scored, "stop"
        return drawn, scored, "length"

    def _prompt_logprobs(self, job: Job, prompt: list[int]) -> tuple[float, ...]:
        if job.logprobs_from is None:
            return ()
        first = max(job.logprobs_from, 1)
        return tuple(self.score(prompt[:n], prompt[n]) for n in range(first, len(prompt)))

    def _node_logprobs(self, job: Job, prompt: list[int]) -> tuple[float, ...]:
        trie = job.trie
        assert trie is not None
        above: list[list[int]] = []
        scored: list[float] = []
        for token, parent in zip(trie.tokens, trie.parents, strict=True):
            ids = prompt if parent < 0 else above[parent]
            scored.append(self.score(ids, token))
            above.append([*ids, token])
        return tuple(scored)

    async def control(self, command: Command) -> Reply:
        tokens = 0
        if isinstance(command, Peek):
            prompt = unpack(command.prompt)
            tokens = max((_common(prompt, other) for other in self.prompts), default=0)
        return Reply(tokens=tokens, stats=NO_STATS)

    async def aclose(self) -> None:
        self.closed = True


NO_STATS = Stats(
    total_pages=0,
    free_pages=0,
    cached_pages=0,
    leased_pages=0,
    running=0,
    waiting=0,
    steps=0,
    prompt_tokens=0,
    cached_tokens=0,
    computed_tokens=0,
    retractions=0,
    evicted_pages=0,
)


def brute_force_total(score: Score, ids: Sequence[int], first: int) -> float:
    """Log-probability of `ids[first:]` given what stands before, one token at a time."""
    return math.fsum(score(ids[:n], ids[n]) for n in range(first, len(ids)))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n
