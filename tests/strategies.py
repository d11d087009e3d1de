"""Random inputs for property tests, one section a room."""

from __future__ import annotations

from dataclasses import dataclass

import naive
from drive import job, trie
from hypothesis import strategies as st

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.port import Job, Rules
from branchwork.backend.sched.plan import Draw, Past
from branchwork.lang.request import METHODS

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
        reserve_tokens=draw(st.sampled_from([0, 8, 64])),
        defer_twins=draw(st.booleans()),
    )


def rules() -> st.SearchStrategy[Rules]:
    return st.builds(
        Rules,
        temperature=st.sampled_from([0.0, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
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
        rules=draw(rules()),
        min_tokens=draw(st.integers(0, 4)),
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


# -- programs: text, calls, roles, forks, joins, copies, cancels and failing calls ---------------


LEADS = ("q:", "Why? ", "a b ", "\n")


@st.composite
def asks(draw: st.DrawFn, errors: bool) -> naive.Ask:
    lead = draw(st.sampled_from(LEADS))
    return naive.Ask(
        lead=lead + naive.FAIL if errors and draw(st.integers(0, 5)) == 5 else lead,
        name=draw(st.sampled_from("abc")),
        max_tokens=draw(st.integers(0, 9)),
        stop=draw(st.sampled_from([(), (" ",), ("e", "bc")])),
        warm=draw(st.booleans()),
    )


def picks() -> st.SearchStrategy[naive.Pick]:
    return st.builds(
        naive.Pick,
        lead=st.sampled_from(LEADS),
        name=st.sampled_from("abc"),
        choices=st.sampled_from([("yes", "no"), ("one", "two", "three"), ("only",)]),
        method=st.sampled_from(METHODS),
    )


@st.composite
def splits(draw: st.DrawFn, depth: int, in_role: bool, flags: tuple[bool, bool]) -> naive.Split:
    inner = program_bodies(depth - 1, in_role, flags)
    later = program_bodies(0, in_role, flags)
    n = draw(st.integers(1, 3))
    some = st.frozensets(st.integers(0, n - 1), max_size=1 if flags[1] else 0)
    bodies = draw(st.lists(inner, min_size=n, max_size=n))
    twice = draw(st.booleans())
    return naive.Split(
        bodies=tuple(bodies),
        meanwhile=draw(inner),
        cancelled=draw(some),
        join=draw(st.booleans()),
        again=tuple(draw(st.lists(later, min_size=n, max_size=n))) if twice else (),
    )


def program_bodies(
    depth: int = 2, in_role: bool = False, flags: tuple[bool, bool] = (True, True)
) -> st.SearchStrategy[naive.Body]:
    """Bodies for `naive.program_of` and `naive.naive`.

    `depth`: how deep forks and copies nest. `in_role`: a role is open round the body. `flags`:
    whether there are failing calls, and whether branches are cancelled.
    """
    names = st.sampled_from("abcd")
    parts: list[st.SearchStrategy[object]] = [
        st.builds(naive.Say, st.sampled_from(["", "x", "some text. "])),
        asks(flags[0]),
        asks(flags[0]),
        picks(),
        st.builds(naive.Quote, names),
        st.builds(naive.Refer, names),
        st.builds(naive.Put, names, st.sampled_from(["v", "w"])),
    ]
    if depth > 0:
        parts.extend([splits(depth, in_role, flags)] * depth)
        parts.append(st.builds(naive.Scratch, program_bodies(depth - 1, in_role, flags)))
    if not in_role:
        roles = st.sampled_from(["system", "user", "assistant"])
        inner = program_bodies(depth - 1, True, flags) if depth > 0 else st.just((asks_fixed(),))
        parts.append(st.builds(naive.Turn, roles, inner))
    return st.lists(st.one_of(parts), min_size=depth, max_size=2 + depth).map(tuple)


def asks_fixed() -> naive.Ask:
    return naive.Ask("turn:", "a")


# -- attention: rows of one step over scattered pages ---------------------------------------


@dataclass(frozen=True)
class AttentionCase:
    page_size: int
    n_pages: int
    rows: tuple[AttentionRow, ...]
    seed: int


@dataclass(frozen=True)
class AttentionRow:
    n_tokens: int
    start: int
    pages: tuple[int, ...]
    parents: tuple[int, ...] | None


@st.composite
def tree_parents(draw: st.DrawFn, n: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(-1, i - 1)) for i in range(n))


@st.composite
def attention_cases(draw: st.DrawFn) -> AttentionCase:
    """Rows of one token, chunks and trees, each on pages of its own, in any order."""
    page_size = draw(st.sampled_from([1, 4, 16]))
    lengths = draw(
        st.lists(
            st.tuples(st.just(1) | st.integers(1, 7), st.integers(0, 40)), min_size=1, max_size=5
        )
    )
    counts = [-(-(n + start) // page_size) for n, start in lengths]
    n_pages = sum(counts) + draw(st.integers(0, 3))
    ids = list(range(n_pages))
    if draw(st.booleans()):  # else every row is one run of neighbours
        ids = list(draw(st.permutations(ids)))
    rows = []
    for (n, start), count in zip(lengths, counts, strict=True):
        parents = draw(st.none() | tree_parents(n))
        rows.append(AttentionRow(n, start, tuple(ids[:count]), parents))
        ids = ids[count:]
    return AttentionCase(page_size, n_pages, tuple(rows), draw(st.integers(0, 2**16)))


# -- sampling: one row of logits and every rule there is -------------------------------------------


@st.composite
def sampled_rows(draw: st.DrawFn) -> tuple[list[float], Draw]:
    """Logits with ties, penalties of a past, a bias and bans; the filters come in any mixture."""
    grid = st.integers(-24, 24).map(lambda i: i / 4)  # a quarter apart: ties, and no near ties
    logits = draw(st.lists(grid, min_size=2, max_size=30))
    ids = st.sets(st.integers(0, len(logits) - 1))
    quarters = st.sampled_from([-0.5, 0.0, 0.25, 1.0])
    chosen = Rules(
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        top_k=draw(st.integers(0, 8)),
        top_p=draw(st.sampled_from([0.07, 0.51, 0.83, 0.97, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.03, 0.3, 1.0])),
        repetition_penalty=draw(st.sampled_from([0.5, 1.0, 1.25, 2.0])),
        presence_penalty=draw(quarters),
        frequency_penalty=draw(quarters),
        logit_bias=tuple((i, draw(grid)) for i in draw(ids)),
    )
    past = Past(tuple(draw(ids)), tuple((i, draw(st.integers(1, 4))) for i in draw(ids)))
    banned = tuple(draw(ids))[: len(logits) - 1]
    seed = draw(st.integers(0, 2**20))
    return logits, Draw(chosen, seed, draw(st.integers(0, 99)), past=past, banned=banned)
