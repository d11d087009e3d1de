"""Random inputs for property tests, one section a room."""

from __future__ import annotations

from dataclasses import dataclass

from drive import job, trie
from hypothesis import strategies as st

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.port import Job

# -- schedules: jobs over few tokens, so that prefixes are shared all the time --------------


@dataclass(frozen=True)
class JobCase:
    job: Job
    prompt: tuple[int, ...]
    arrives: int
    cancelled: int | None
    choices: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Schedule:
    config: SchedulerConfig
    n_pages: int
    cases: tuple[JobCase, ...]
    fail_steps: frozenset[int]


STEMS = ([], [1] * 9, [2, 3] * 12, [2, 3] * 12 + [4] * 5, list(range(10, 33)))


def prompts() -> st.SearchStrategy[tuple[int, ...]]:
    tail = st.lists(st.integers(0, 3), max_size=6)
    return st.builds(lambda stem, end: (*stem, *end) or (7,), st.sampled_from(STEMS), tail)


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_running = draw(st.integers(1, 8))
    return SchedulerConfig(
        page_size=draw(st.sampled_from([1, 4, 16])),
        step_tokens=draw(st.integers(max_running, 40)),
        chunk_tokens=draw(st.none() | st.integers(1, 9)),
        max_running=max_running,
        max_overtakes=draw(st.integers(1, 5)),
        defer_twins=draw(st.booleans()),
    )


@st.composite
def job_cases(draw: st.DrawFn, name: str, cancels: bool) -> JobCase:
    prompt = draw(prompts())
    arrives = draw(st.integers(0, 12))
    cancelled = draw(st.none() | st.integers(arrives, 40)) if cancels else None
    logprobs_from = draw(st.none() | st.integers(0, len(prompt)))
    namespace = draw(st.sampled_from(["", "other"]))
    if draw(st.integers(0, 3)) == 0:
        path = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
        choices = tuple(draw(st.lists(path, min_size=1, max_size=5, unique=True)))
        made = job(
            name, prompt, 0, trie=trie(choices), namespace=namespace, logprobs_from=logprobs_from
        )
        return JobCase(made, prompt, arrives, cancelled, choices)
    made = job(
        name,
        prompt,
        draw(st.integers(0, 24)),
        seed=draw(st.integers(0, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        end_ids=tuple(draw(st.sets(st.integers(0, 49), max_size=2))),
        stop=tuple(str(t) for t in draw(st.sets(st.integers(0, 49), max_size=2))),
        logprobs_from=logprobs_from,
        namespace=namespace,
    )
    return JobCase(made, prompt, arrives, cancelled)


@st.composite
def schedules(draw: st.DrawFn, failures: bool = True, cancels: bool = True) -> Schedule:
    config = draw(configs())
    count = draw(st.integers(1, 10))
    cases = tuple(draw(job_cases(f"j{i}", cancels)) for i in range(count))
    biggest = max(len(c.prompt) + c.job.max_tokens + sum(map(len, c.choices)) for c in cases)
    least = -(-biggest // config.page_size)
    n_pages = draw(st.integers(least, 3 * least + 4))  # small: eviction and retraction all the time
    fail_steps = draw(st.frozensets(st.integers(0, 30), max_size=2)) if failures else frozenset()
    return Schedule(config, n_pages, cases, fail_steps)
