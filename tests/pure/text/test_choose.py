"""Scores of choices and the rules that pick one."""

from __future__ import annotations

import math

import pytest

from branchwork.lang.choose import pick, scores
from branchwork.lang.errors import InvalidRequest

PATHS = [[-1.0, -1.0], [-1.5], [-0.5, -0.5, -0.9]]


@pytest.mark.parametrize(("method", "winner"), [("total", 1), ("token_mean", 2)])
def test_methods_differ_where_lengths_do(method: str, winner: int) -> None:
    assert pick(method, PATHS) == winner


@pytest.mark.parametrize("method", ["total", "token_mean"])
def test_equal_scores_go_to_the_earlier_choice(method: str) -> None:
    assert pick(method, [[-3.0], [-0.1, -0.3], [-0.3, -0.1]]) == 1


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="total, token_mean"):
        pick("best", PATHS)


def test_probabilities_are_the_softmax_of_the_totals() -> None:
    first, second, third = scores(("a", "b", "c"), PATHS)
    assert (first.total, second.total, third.total) == (-2.0, -1.5, -1.9)
    assert third.token_mean == pytest.approx(-1.9 / 3)
    assert first.token_logprobs == (-1.0, -1.0)
    assert first.probability / second.probability == pytest.approx(math.exp(-0.5))
    assert sum(s.probability for s in (first, second, third)) == pytest.approx(1)


def test_impossible_choices_lose_and_do_not_spoil_the_others() -> None:
    paths = [[-math.inf], [-900.0], [math.nan]]
    assert pick("total", paths) == 1
    assert [s.probability for s in scores(("a", "b", "c"), paths)] == [0.0, 1.0, 0.0]


def test_if_nothing_is_possible_the_first_wins_at_even_odds() -> None:
    paths = [[-math.inf], [-math.inf, -1.0]]
    assert pick("token_mean", paths) == 0
    assert [s.probability for s in scores(("a", "b"), paths)] == [0.5, 0.5]
