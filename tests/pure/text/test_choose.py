"""Scores of choices and the rules that pick one."""

from __future__ import annotations

import math

import pytest

from branchwork.lang.choose import pick, scores
from branchwork.lang.errors import InvalidRequest
from branchwork.lang.request import METHODS

PATHS = [[-1.0, -1.0], [-1.5], [-0.5, -0.5, -0.9]]


@pytest.mark.parametrize(
    ("method", "winner"),
    [("total", 1), ("token_mean", 2), ("byte_mean", 0), ("greedy_token", 2), ("unconditional", 0)],
)
def test_methods_differ_where_lengths_do(method: str, winner: int) -> None:
    assert pick(method, PATHS, [8, 2, 3], [-3.0, -1.0, -1.9]) == winner


@pytest.mark.parametrize("method", ["total", "token_mean", "greedy_token"])
def test_equal_scores_go_to_the_earlier_choice(method: str) -> None:
    same = (
        [[-0.1, -0.3], [-0.1, -0.3]] if method == "greedy_token" else [[-0.1, -0.3], [-0.3, -0.1]]
    )
    assert pick(method, [[-3.0], *same]) == 1


@pytest.mark.parametrize(
    ("paths", "rounds"),
    [
        ([[-1.0, -9.0], [-2.0, -0.1]], [1, 0]),  # the first token decides, whatever follows
        ([[-1.0, -2.0, -1.0], [-1.0, -0.5, -9.0]], [1, 2]),  # alike at first
        ([[-1.0], [-1.0, -0.5, -9.0], [-1.0, -0.5, -1.0]], [1, 2, 3]),  # -1 is its mean
        ([[-1.0], [-1.0, -3.0]], [2, 1]),
        ([[-math.inf, -1.0], [-math.inf, -2.0]], [2, 1]),
    ],
)
def test_the_greedy_walk_follows_the_best_token(
    paths: list[list[float]], rounds: list[int]
) -> None:
    found = [score.greedy_token for score in scores([str(i) for i in range(len(paths))], paths)]
    assert found == rounds
    assert pick("greedy_token", paths) == rounds.index(max(rounds))


def test_every_method_is_the_highest_of_its_own_score() -> None:
    texts, priors = ("abé", "c", "de"), [-9.0, -1.0, -0.5]
    sizes = [4, 1, 2]
    found = scores(texts, PATHS, priors)
    assert [score.byte_mean for score in found] == [-2.0 / 4, -1.5, pytest.approx(-1.9 / 2)]
    assert [score.unconditional for score in found] == [7.0, -0.5, pytest.approx(-1.4)]
    for method in METHODS:
        values = [getattr(score, method) for score in found]
        assert pick(method, PATHS, sizes, priors) == values.index(max(values))


def test_the_unconditional_score_is_there_only_if_asked() -> None:
    assert [score.unconditional for score in scores(("a", "b", "c"), PATHS)] == [None] * 3


def test_an_impossible_choice_gains_nothing_from_being_impossible_anywhere() -> None:
    paths, priors = [[-math.inf], [-5.0]], [-math.inf, -1.0]
    assert pick("unconditional", paths, (), priors) == 1
    assert scores(("a", "b"), paths, priors)[0].unconditional == -math.inf


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
