"""Draws: greedy ties, seeds, independence from batch mates, and the distribution itself."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwork.backend.port import Rules
from branchwork.backend.runner.philox import philox, uniform
from branchwork.backend.runner.sampler import draw_one, nucleus, sample
from branchwork.backend.sched.plan import Draw

ONES = 0xFFFFFFFF


def rule(
    temperature: float, top_p: float = 1.0, seed: int = 0, position: int = 0, logprob: bool = False
) -> Draw:
    return Draw(Rules(temperature=temperature, top_p=top_p), seed, position, logprob)


def random_logits(n: int, vocab: int = 300, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def test_philox_gives_the_published_numbers() -> None:
    """Known answers of the Random123 library."""
    assert philox((0,) * 4, (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ONES,) * 4, (ONES, ONES)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    expected = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == expected


def test_uniform_numbers_are_spread_over_seeds_and_positions() -> None:
    for numbers in (
        [uniform(seed, 5) for seed in range(4000)],
        [uniform(5, position) for position in range(4000)],
    ):
        assert all(0 <= number < 1 for number in numbers)
        counts = Counter(int(number * 20) for number in numbers)
        assert chi_square(counts, [1 / 20] * 20, 4000) < 50  # p = 1e-4 at 19 degrees of freedom
    assert uniform(2**63 - 1, 2**40) != uniform(2**31 - 1, 2**40)
    assert uniform(1, 2**32) != uniform(1, 0)


def chi_square(counts: Counter[int], expected: list[float], n: int) -> float:
    return sum((counts[i] - p * n) ** 2 / (p * n) for i, p in enumerate(expected) if p > 0)


@pytest.mark.parametrize("vocab", [5, 300, 49152])
def test_greedy_takes_the_lowest_id_of_equals(vocab: int) -> None:
    logits = torch.zeros(3, vocab)
    logits[1, 3:] = 1.0
    logits[2, [2, vocab - 1]] = 7.0
    assert [drawn.token for drawn in sample(logits, [rule(0.0)] * 3)] == [0, 3, 2]


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.8), (0.7, 0.5)]
)
def test_draws_follow_the_tempered_and_filtered_distribution(
    temperature: float, top_p: float
) -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.5, 0.2, -3.0], dtype=np.float32)
    weights = np.exp(logits / temperature)
    p = (weights / weights.sum()).tolist()
    kept, running = set(), 0.0
    for token in sorted(range(8), key=lambda i: (-p[i], i)):
        if running < top_p:
            kept.add(token)
        running += p[token]
    total = sum(p[i] for i in kept)
    expected = [p[i] / total if i in kept else 0.0 for i in range(8)]
    n = 5000
    counts = Counter(draw_one(logits, rule(temperature, top_p, seed)) for seed in range(n))
    assert set(counts) <= kept
    assert chi_square(counts, expected, n) < 32  # p below 1e-4 at 7 degrees of freedom


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=60),
    st.floats(0.01, 0.999),
)
def test_the_nucleus_is_the_shortest_prefix_of_the_ranking(
    logits: list[float], top_p: float
) -> None:
    weights = np.exp(np.array(logits))
    ranked = sorted(range(len(logits)), key=lambda i: (-weights[i], i))
    kept = [int(i) for i in np.flatnonzero(nucleus(weights, top_p))]
    assert sorted(ranked[: len(kept)]) == kept  # a prefix of the ranking, ties by id
    shares = weights[ranked] / weights.sum()
    assert shares[: len(kept)].sum() >= top_p - 1e-9
    assert shares[: len(kept) - 1].sum() < top_p + 1e-9


def test_a_tiny_top_p_or_temperature_is_greedy() -> None:
    logits = random_logits(20)
    best = logits.argmax(-1).tolist()
    for draw in (rule(1.0, 1e-9), rule(1e-6), rule(1e-300)):
        assert [drawn.token for drawn in sample(logits, [draw] * 20)] == best


def test_equal_seeds_agree_and_other_seeds_and_positions_differ() -> None:
    logits = random_logits(1).expand(200, -1)
    draws = [rule(1.5, seed=7, position=i) for i in range(200)]
    first, again = sample(logits, draws), sample(logits, draws)
    other = sample(logits, [rule(1.5, seed=8, position=i) for i in range(200)])
    assert first == again
    assert first != other
    assert len({drawn.token for drawn in first}) > 20


def test_a_rows_draw_does_not_depend_on_its_batch() -> None:
    """A seeded row alone, beside an unseeded-like row, beside another seed, first and last."""
    logits = random_logits(64, vocab=5000)
    mixed = [(0.8, 0.9), (0.0, 1.0), (1.3, 1.0)]
    draws = [rule(*mixed[i % 3], seed=i, position=i, logprob=True) for i in range(64)]
    together = sample(logits, draws)
    backwards = sample(logits.flip(0), draws[::-1])[::-1]
    alone = [sample(logits[i : i + 1], [draws[i]])[0] for i in range(64)]
    assert together == backwards == alone


def test_logprob_is_the_raw_one_whatever_the_filter() -> None:
    logits = random_logits(6)
    draws = [rule(0.3, 0.5, seed=i, logprob=True) for i in range(5)] + [rule(0.0)]
    raw = logits.double().log_softmax(-1)
    for i, drawn in enumerate(sample(logits, draws)):
        if draws[i].logprob:
            assert drawn.token is not None and drawn.logprob is not None
            assert math.isclose(drawn.logprob, raw[i, drawn.token].item(), abs_tol=1e-5)
        else:
            assert drawn.logprob is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    logits = random_logits(3)
    draws = [rule(temperature, 0.9, seed=i, logprob=True) for i in range(3)]
    clean = sample(logits, draws)
    spoiled = logits.clone()
    spoiled[1, 17] = bad
    drawn = sample(spoiled, draws)
    assert drawn[0] == clean[0] and drawn[2] == clean[2]
    assert drawn[1].token is None and "NaN" in (drawn[1].error or "")
