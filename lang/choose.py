"""The rules by which `select` scores its choices and picks one.

Pure functions over the log-probabilities of each choice's tokens, in the order the choices were
given. Know no tokens, no tries and no model. Called by the scheduler, which must know the winner to
keep its KV, and by the text front end, which reports all scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import InvalidRequest
from .request import METHODS, ChoiceScore


def pick(method: str, paths_logprobs: Sequence[Sequence[float]]) -> int:
    """Index of the best choice by `method`; equal scores go to the earlier choice.

    `paths_logprobs[c]` holds the natural-log probabilities of choice c's tokens, at least one.
    Raises InvalidRequest for an unknown method.
    """
    if method not in METHODS:
        raise InvalidRequest(f"method must be one of {', '.join(METHODS)}, found {method!r}")
    rule = _total if method == "total" else _token_mean
    values = [rule(logprobs) for logprobs in paths_logprobs]
    return values.index(max(values))


def scores(
    texts: Sequence[str], paths_logprobs: Sequence[Sequence[float]]
) -> tuple[ChoiceScore, ...]:
    """Every score of every choice. `probability` is the softmax of the totals over the choices.

    When no choice is possible at all (every total is minus infinity) they share 1 evenly.
    """
    totals = [_total(logprobs) for logprobs in paths_logprobs]
    best = max(totals)
    weights = [math.exp(total - best) if best > -math.inf else 1.0 for total in totals]
    mass = math.fsum(weights)
    return tuple(
        ChoiceScore(
            text=text,
            total=total,
            token_mean=_token_mean(logprobs),
            token_logprobs=tuple(logprobs),
            probability=weight / mass,
        )
        for text, logprobs, total, weight in zip(
            texts, paths_logprobs, totals, weights, strict=True
        )
    )


def _total(logprobs: Sequence[float]) -> float:
    """Exact sum (order does not matter); what is not a number counts as impossible."""
    total = math.fsum(logprobs)
    return -math.inf if math.isnan(total) else total


def _token_mean(logprobs: Sequence[float]) -> float:
    return _total(logprobs) / len(logprobs)
