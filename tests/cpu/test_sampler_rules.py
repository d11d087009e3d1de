"""Filters, penalties, bias and bans against the naive reference, alone and all together."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from naive_sampler import distribution
from strategies import sampled_rows

from branchwork.backend.port import Rules
from branchwork.backend.runner.philox import uniform
from branchwork.backend.runner.sampler import draw_one, largest, likeliest, sample
from branchwork.backend.sched.plan import Draw, Past

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.5, 0.2, -3.0, 1.5, 0.9], dtype=np.float32)
N = 5000


NOTHING = Past()


def draw(seed: int = 0, past: Past = NOTHING, banned: tuple[int, ...] = (), **rules: Any) -> Draw:
    return Draw(Rules(**({"temperature": 1.0} | rules)), seed, 0, past=past, banned=banned)


DRAWN = Past(drawn=((0, 1), (5, 3), (7, 2)))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 3},  # the third and fourth are equals: the lower id stays
        {"top_k": 99},
        {"top_k": 4, "temperature": 2.0},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"min_p": 0.2, "temperature": 0.5},
        {"top_k": 5, "top_p": 0.7},
        {"top_k": 6, "top_p": 0.95, "min_p": 0.25},
        {"repetition_penalty": 1.5, "past": Past(seen=(0, 4, 7, 8))},
        {"repetition_penalty": 0.7, "past": Past(seen=(1, 3, 4))},
        {"frequency_penalty": 0.6, "past": DRAWN},
        {"presence_penalty": -1.1, "past": DRAWN},
        {"frequency_penalty": 0.5, "presence_penalty": 0.9, "past": DRAWN, "top_k": 4},
        {"logit_bias": ((7, 4.0), (0, -100.0))},
        {"banned": (0, 5)},
        {"banned": (0,), "logit_bias": ((0, 100.0),), "top_p": 0.8},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(options: dict[str, Any]) -> None:
    p = distribution(LOGITS.tolist(), draw(**options))
    counts = Counter(draw_one(LOGITS, draw(seed, **options)) for seed in range(N))
    assert set(counts) <= {i for i, share in enumerate(p) if share > 0}
    square = sum((counts[i] - s * N) ** 2 / (s * N) for i, s in enumerate(p) if s > 0)
    assert square < 36  # p below 1e-4 at 9 degrees of freedom


@settings(max_examples=300, deadline=None)
@given(sampled_rows())
def test_any_rules_in_any_mixture_draw_what_the_naive_order_draws(
    row: tuple[list[float], Draw],
) -> None:
    logits, rule = row
    p = np.array(distribution(logits, rule))
    u = uniform(rule.seed, rule.position)
    token = sample(torch.tensor([logits], dtype=torch.float32), [rule])[0].token
    assert token is not None
    below, above = p[:token].sum(), p[: token + 1].sum()
    assert p[token] > 0
    assert below - 1e-9 <= u < above + 1e-9 or rule.rules.temperature == 0


@settings(max_examples=100, deadline=None)
@given(sampled_rows())
def test_greedy_minds_penalties_and_no_filter(row: tuple[list[float], Draw]) -> None:
    logits, rule = row
    r = rule.rules
    greedy = Rules(
        repetition_penalty=r.repetition_penalty,
        presence_penalty=r.presence_penalty,
        frequency_penalty=r.frequency_penalty,
        logit_bias=r.logit_bias,
    )
    filtered = Rules(
        top_k=r.top_k,
        top_p=r.top_p,
        min_p=r.min_p,
        repetition_penalty=r.repetition_penalty,
        presence_penalty=r.presence_penalty,
        frequency_penalty=r.frequency_penalty,
        logit_bias=r.logit_bias,
    )
    draws = [Draw(rules, 1, 2, past=rule.past, banned=rule.banned) for rules in (greedy, filtered)]
    plain, other = sample(torch.tensor([logits, logits], dtype=torch.float32), draws)
    assert plain.token == other.token
    assert distribution(logits, draws[0])[plain.token or 0] == 1.0


def test_a_row_with_every_rule_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(30, 2000, generator=torch.Generator().manual_seed(3)) * 3
    kinds: list[dict[str, Any]] = [
        {"top_k": 40, "min_p": 0.02},
        {"temperature": 0.0, "past": Past(drawn=((3, 2),)), "presence_penalty": 1.0},
        {"temperature": 0.0},
        {"top_p": 0.9, "past": Past(seen=(1, 2, 1999)), "repetition_penalty": 1.3},
        {"logit_bias": ((7, 3.0),), "banned": (8,)},
    ]
    draws = []
    for i in range(30):
        rule = draw(i, **kinds[i % 5])
        draws.append(Draw(rule.rules, i, i, True, i % 4, rule.past, rule.banned))
    together = sample(logits, draws)
    backwards = sample(logits.flip(0), draws[::-1])[::-1]
    alone = [sample(logits[i : i + 1], [draws[i]])[0] for i in range(30)]
    assert together == backwards == alone


def test_the_likeliest_are_raw_and_ranked_with_ties_by_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])
    rules = Rules(temperature=0.4, top_k=1, logit_bias=((0, 50.0),))
    drawn = sample(logits, [Draw(rules, 0, 0, logprob=True, top=4, banned=(1,))])[0]
    raw = logits[0].double().log_softmax(-1).tolist()
    assert drawn.token == 0
    assert math.isclose(drawn.logprob or 0, raw[0], abs_tol=1e-6)
    assert [token for token, _ in drawn.top] == [1, 3, 2, 4]
    assert all(math.isclose(value, raw[token], abs_tol=1e-6) for token, value in drawn.top)


def test_more_likeliest_than_tokens_are_all_tokens() -> None:
    drawn = sample(torch.zeros(1, 3), [Draw(Rules(), 0, 0, top=20)])[0]
    assert [token for token, _ in drawn.top] == [0, 1, 2]
    assert drawn.logprob is None
    assert likeliest(np.zeros(3, dtype=np.float32), 0) == ()


def test_the_largest_are_so_many_whatever_the_ties() -> None:
    values = np.array([0.0, 2.0, 1.0, 1.0, 0.0, 1.0])
    for k, kept in enumerate([[1], [1, 2], [1, 2, 3], [1, 2, 3, 5], [0, 1, 2, 3, 5]], start=1):
        assert np.flatnonzero(largest(values, k)).tolist() == kept
    assert largest(values, 6).all() and largest(values, 99).all()


def test_a_temperature_that_overflows_is_greedy() -> None:
    assert draw_one(LOGITS, draw(temperature=5e-324)) == 0
    assert draw_one(LOGITS, draw(temperature=5e-324, logit_bias=((3, 1e300),))) == 3
