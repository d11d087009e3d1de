"""Whole steps on the tiny model: chunks, batches, tries, copies, scores, rows that fail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import SPEC, tiny_runner

from branchwork.backend.port import Rules
from branchwork.backend.runner.kv import KvPool
from branchwork.backend.runner.runner import SCORE_ROWS, Runner
from branchwork.backend.sched.plan import Copy, Draw, Row, RowResult, StepPlan
from branchwork.lang.errors import EngineClosed

PAGE = 4
CPU = torch.device("cpu")


def greedy(position: int) -> Draw:
    return Draw(Rules(), 0, position, logprob=True)


def step(runner: Runner, rows: Sequence[Row], copies: Sequence[Copy] = ()) -> list[RowResult]:
    return list(runner.sample(runner.forward(StepPlan(tuple(rows), tuple(copies)))).rows)


def prompt(n: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SPEC.vocab, (n,), generator=generator).tolist()


def scored(tokens: Sequence[int], first: int, last: int) -> tuple[tuple[int, int], ...]:
    """Ask for the log-probabilities of tokens first..last of a row that starts at 0."""
    return tuple((i - 1, tokens[i]) for i in range(first, last + 1))


def linear_logprobs(tokens: Sequence[int]) -> list[float]:
    """Log-probability of each token but the first, computed in one plain row."""
    row = Row(tokens, 0, range(40), scores=scored(tokens, 1, len(tokens) - 1))
    return list(step(tiny_runner(), [row])[0].scores)


def close(ours: Sequence[float], expected: Sequence[float]) -> bool:
    return all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(ours, expected, strict=True))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 3, 7, 50])
def test_chunks_of_any_size_give_the_whole_prompts_numbers(page_size: int, chunk: int) -> None:
    tokens, runner = prompt(50), tiny_runner(128, page_size)
    pages = list(range(60, 60 - -(-50 // page_size), -1))
    got: list[float] = []
    for start in range(0, 50, chunk):
        part = tokens[start : start + chunk]
        ahead = tokens[start + 1 : start + 1 + len(part)]
        row = Row(part, start, pages, scores=tuple(enumerate(ahead)))
        got += step(runner, [row])[0].scores
    assert close(got, linear_logprobs(tokens))


def generate(
    runner: Runner, prompts: list[list[int]], draws: list[tuple[float, int]], n: int
) -> list[list[int]]:
    """Run sequences side by side for `n` tokens; the i-th joins after i steps."""
    pages = [list(range(i * 12, i * 12 + 12)) for i in range(len(prompts))]
    known = [list(tokens) for tokens in prompts]
    done = [0] * len(prompts)
    turn = 0
    while any(len(k) < len(p) + n for k, p in zip(known, prompts, strict=True)):
        live = [i for i, k in enumerate(known) if i <= turn and len(k) < len(prompts[i]) + n]
        rows = [
            Row(
                known[i][done[i] :],
                done[i],
                pages[i],
                draw=Draw(Rules(temperature=draws[i][0], top_p=0.95), draws[i][1], len(known[i])),
            )
            for i in live
        ]
        for i, result in zip(live, step(runner, rows), strict=True):
            assert result.token is not None
            done[i] = len(known[i])
            known[i].append(result.token)
        turn += 1
    return [k[len(p) :] for k, p in zip(known, prompts, strict=True)]


def test_tokens_in_a_mixed_batch_equal_those_alone() -> None:
    prompts = [prompt(n, seed=n) for n in (5, 17, 1, 30, 9)]
    draws = [(0.0, 0), (0.9, 3), (1.2, 4), (0.0, 0), (0.7, 3)]
    together = generate(tiny_runner(), prompts, draws, 12)
    alone = [generate(tiny_runner(), [p], [d], 12)[0] for p, d in zip(prompts, draws, strict=True)]
    assert together == alone


BRANCHES = [[11, 12, 13], [11, 12, 40], [11, 50], [60], [61, 12, 13]]


def trie_of(branches: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[list[int]]]:
    """Nodes' tokens and parents, and each branch's nodes."""
    nodes: dict[tuple[int, ...], int] = {}
    tokens, parents, paths = [], [], []
    for branch in branches:
        path = []
        for depth in range(1, len(branch) + 1):
            key = tuple(branch[:depth])
            if key not in nodes:
                nodes[key] = len(tokens)
                tokens.append(key[-1])
                parents.append(nodes[key[:-1]] if depth > 1 else -1)
            path.append(nodes[key])
        paths.append(path)
    return tokens, parents, paths


def trie_row(tokens: list[int], branches: Sequence[Sequence[int]], start: int) -> Row:
    """The last prompt token and, below it, the trie; each node is scored where its parent is."""
    nodes, parents, _ = trie_of(branches)
    return Row(
        tokens[start:] + nodes,
        start,
        range(40),
        parents=(*range(-1, len(tokens) - start - 1), *trie_parents(tokens, parents, start)),
        scores=tuple(
            (parent, token)
            for parent, token in zip(trie_parents(tokens, parents, start), nodes, strict=True)
        ),
    )


def trie_parents(tokens: list[int], parents: list[int], start: int) -> list[int]:
    lead = len(tokens) - start
    return [lead - 1 if parent < 0 else lead + parent for parent in parents]


@pytest.mark.parametrize("start", [0, 18])
def test_a_trie_scores_each_branch_as_if_it_ran_alone(start: int) -> None:
    tokens, runner = prompt(19), tiny_runner()
    if start:
        step(runner, [Row(tokens[:start], 0, range(40))])
    got = step(runner, [trie_row(tokens, BRANCHES, start)])[0].scores
    for branch, path in zip(BRANCHES, trie_of(BRANCHES)[2], strict=True):
        expected = linear_logprobs(tokens + branch)[len(tokens) - 1 :]
        assert close([got[node] for node in path], expected)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    st.integers(1, 9),
)
def test_any_trie_scores_like_its_branches(branches: list[list[int]], n_prompt: int) -> None:
    tokens = prompt(n_prompt)
    got = step(tiny_runner(), [trie_row(tokens, branches, 0)])[0].scores
    for branch, path in zip(branches, trie_of(branches)[2], strict=True):
        expected = linear_logprobs(tokens + branch)[len(tokens) - 1 :]
        assert close([got[node] for node in path], expected)


@pytest.mark.parametrize("winner", range(len(BRANCHES)))
def test_a_trie_path_moved_to_the_front_continues_as_if_computed_there(winner: int) -> None:
    """Slots of the winning nodes may overlap the places they move to: reads come before writes."""
    tokens, runner = prompt(18), tiny_runner()
    step(runner, [trie_row(tokens, BRANCHES, 0)])
    path = trie_of(BRANCHES)[2][winner]
    copies = [
        Copy(*divmod(18 + node, PAGE), *divmod(18 + depth, PAGE), 1)
        for depth, node in enumerate(path)
        if depth != node
    ]
    whole = [*tokens, *BRANCHES[winner]]
    tail = [5, 6, 7]
    row = Row(tail, len(whole), range(40), scores=((0, 6), (1, 7)), draw=greedy(len(whole) + 3))
    moved = step(runner, [row], copies)[0]
    expected = linear_logprobs(whole + tail)[-2:]
    assert close(moved.scores, expected)
    fresh = Row(whole + tail, 0, range(40), draw=greedy(len(whole) + 3))
    assert moved.token == step(tiny_runner(), [fresh])[0].token


def test_a_copied_tail_page_continues_like_the_original() -> None:
    """Ten tokens; a second sequence takes two full pages and a copy of the third's two rows."""
    tokens, runner = prompt(10), tiny_runner()
    step(runner, [Row(tokens, 0, (0, 1, 2))])
    rows = [
        Row([7], 10, (0, 1, 2), scores=((0, 9),)),
        Row([8], 10, (0, 1, 30), scores=((0, 9),)),
    ]
    left, right = step(runner, rows, [Copy(2, 0, 30, 0, 2)])
    assert close(left.scores, linear_logprobs([*tokens, 7, 9])[-1:])
    assert close(right.scores, linear_logprobs([*tokens, 8, 9])[-1:])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copies_read_everything_before_they_write(data: st.DataObject) -> None:
    """Against a slot-by-slot model: chains, swaps and overlaps of sources and targets."""
    pool = KvPool(SPEC, 6, PAGE, torch.float32, CPU)
    pool.tensor.copy_(torch.arange(pool.tensor.numel()).view_as(pool.tensor))
    before = pool.tensor.clone()
    copies, taken = [], set()
    for _ in range(data.draw(st.integers(1, 8))):
        n = data.draw(st.integers(1, PAGE))
        src, dst = (data.draw(st.integers(0, 5)) for _ in range(2))
        src_row, dst_row = (data.draw(st.integers(0, PAGE - n)) for _ in range(2))
        targets = set(range(dst * PAGE + dst_row, dst * PAGE + dst_row + n))
        if not targets & taken:
            taken |= targets
            copies.append(Copy(src, src_row, dst, dst_row, n))
    pool.copy(copies)
    expected = before.clone()
    for copy in copies:
        for i in range(copy.n):
            source = copy.src * PAGE + copy.src_row + i
            expected[:, :, copy.dst * PAGE + copy.dst_row + i] = before[:, :, source]
    assert torch.equal(pool.tensor, expected)


def test_scores_come_back_in_the_order_asked() -> None:
    tokens = prompt(12)
    pairs = [(i, token) for i in range(11) for token in (tokens[i + 1], 3)]
    asked = tuple(pairs[::-1][::2] + pairs[::2])
    row = Row(tokens, 0, range(3), scores=asked)
    other = Row(tokens[:5], 0, (10, 11), scores=((2, 8),))
    first, second = step(tiny_runner(), [row, other])
    singles = [
        step(tiny_runner(), [Row(tokens, 0, range(3), scores=(pair,))])[0].scores[0]
        for pair in asked
    ]
    assert close(first.scores, singles)
    assert close(second.scores, step(tiny_runner(), [other])[0].scores)


def test_scores_of_more_positions_than_fit_at_once_are_all_there() -> None:
    tokens = prompt(2 * SCORE_ROWS + 10)
    row = Row(tokens, 0, range(100), scores=scored(tokens, 1, len(tokens) - 1))
    whole = step(tiny_runner(128), [row])[0].scores
    assert len(whole) == len(tokens) - 1
    assert all(score < 0 for score in whole)
    assert close(whole[:100], linear_logprobs(tokens[:101]))


def test_a_row_that_wants_nothing_gets_nothing() -> None:
    results = step(tiny_runner(), [Row(prompt(5), 0, (0, 1)), Row([3], 0, (2,), draw=greedy(1))])
    assert results[0] == RowResult()
    assert results[1].token is not None and results[1].logprob is not None
    assert results[1].error is None


@pytest.mark.parametrize("wants", ["draw", "scores"])
def test_a_sequence_with_spoiled_kv_fails_alone(wants: str) -> None:
    runner = tiny_runner()
    row = Row([9], 6, (0, 1), draw=greedy(7)) if wants == "draw" else None
    row = row or Row([9], 6, (0, 1), scores=((0, 4),))
    mates = [Row([9], 6, (4, 5), draw=greedy(7)), Row(prompt(5), 0, (8, 9), scores=((1, 2),))]
    for pages in ((0, 1), (4, 5)):
        step(runner, [Row(prompt(6), 0, pages)])
    clean = step(runner, [row, *mates])
    pool = runner._pool
    assert pool is not None
    pool.tensor[:, :, 2] = math.nan
    spoiled = step(runner, [row, *mates])
    assert spoiled[0] == RowResult(error=spoiled[0].error) and spoiled[0].error
    assert spoiled[1:] == clean[1:]


def test_bfloat16_steps_run_and_come_close() -> None:
    tokens = prompt(30)
    row = Row(tokens, 0, range(8), scores=scored(tokens, 1, 29), draw=greedy(30))
    rough = step(tiny_runner(dtype=torch.bfloat16), [row])[0]
    exact = step(tiny_runner(), [row])[0]
    assert max(abs(a - b) for a, b in zip(rough.scores, exact.scores, strict=True)) < 0.3
    assert rough.token is not None


def test_a_closed_runner_says_so() -> None:
    runner = tiny_runner()
    runner.close()
    runner.close()
    with pytest.raises(EngineClosed):
        step(runner, [Row([1], 0, (0,))])
