"""The rules by which `select` scores its choices and picks one.

Pure functions over the log-probabilities of each choice's tokens, in the order the choices were
given. Know no tokens, no tries and no model. Called by the scheduler, which must know the winner to
keep its KV, and by the text front end, which reports all scores.

The methods (`request.METHODS`), each the score that the winner has the highest of:

    total          log-probability of the whole choice
    token_mean     the mean over its tokens: favours long words whose ends are predictable
    byte_mean      total over its UTF-8 bytes: the same idea without the tokenizer's whims
    greedy_token   how far it is what step-by-step greedy decoding over the choices would write
    unconditional  total less what the choice scores with no prompt at all (`priors`): what the
                   prompt adds, so that a choice common in any text has no advantage
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import InvalidRequest
from .request import METHODS, ChoiceScore


def check_method(method: str) -> None:
    """Raise InvalidRequest for an unknown method, naming the known ones."""
    if method not in METHODS:
        raise InvalidRequest(f"method must be one of {', '.join(METHODS)}, found {method!r}")


def pick(
    method: str,
    paths_logprobs: Sequence[Sequence[float]],
    n_bytes: Sequence[int] = (),
    priors: Sequence[float] = (),
) -> int:
    """Index of the best choice by `method`; equal scores go to the earlier choice.

    `paths_logprobs[c]` holds the natural-log probabilities of choice c's tokens, at least one.
    `n_bytes[c]` is its length in UTF-8 bytes, for "byte_mean"; `priors[c]` its total without a
    prompt, for "unconditional". Raises InvalidRequest for an unknown method.
    """
    check_method(method)
    values: list[float]
    if method == "greedy_token":
        values = [float(rounds) for rounds in _greedy_token(paths_logprobs)]
    elif method == "token_mean":
        values = [_token_mean(logprobs) for logprobs in paths_logprobs]
    else:
        values = [_total(logprobs) for logprobs in paths_logprobs]
        if method == "byte_mean":
            values = [total / n for total, n in zip(values, n_bytes, strict=True)]
        elif method == "unconditional":
            values = [_gain(total, prior) for total, prior in zip(values, priors, strict=True)]
    return values.index(max(values))


def scores(
    texts: Sequence[str],
    paths_logprobs: Sequence[Sequence[float]],
    priors: Sequence[float] = (),
) -> tuple[ChoiceScore, ...]:
    """Every score of every choice; `unconditional` only where `priors` are given (see `pick`).

    `probability` is the softmax of the totals over the choices. When no choice is possible at all
    (every total is minus infinity) they share 1 evenly.
    """
    totals = [_total(logprobs) for logprobs in paths_logprobs]
    best = max(totals)
    weights = [math.exp(total - best) if best > -math.inf else 1.0 for total in totals]
    mass = math.fsum(weights)
    greedy = _greedy_token(paths_logprobs)
    return tuple(
        ChoiceScore(
            text=text,
            total=totals[i],
            token_mean=_token_mean(paths_logprobs[i]),
            byte_mean=totals[i] / n_bytes(text),
            greedy_token=greedy[i],
            unconditional=_gain(totals[i], priors[i]) if priors else None,
            token_logprobs=tuple(paths_logprobs[i]),
            probability=weights[i] / mass,
        )
        for i, text in enumerate(texts)
    )


def totals(paths_logprobs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The log-probability of each whole choice: the `priors` of a second pass."""
    return tuple(_total(logprobs) for logprobs in paths_logprobs)


def n_bytes(text: str) -> int:
    """Length of a choice in UTF-8 bytes, as `byte_mean` counts it. A lone surrogate counts 3."""
    return len(text.encode("utf-8", "surrogatepass"))


def _total(logprobs: Sequence[float]) -> float:
    """Exact sum (order does not matter); what is not a number counts as impossible."""
    total = math.fsum(logprobs)
    return -math.inf if math.isnan(total) else total


def _token_mean(logprobs: Sequence[float]) -> float:
    return _total(logprobs) / len(logprobs)


def _gain(total: float, prior: float) -> float:
    """What is impossible after the prompt loses, however impossible it was without."""
    return -math.inf if total == -math.inf else total - prior


def _greedy_token(paths_logprobs: Sequence[Sequence[float]]) -> list[int]:
    """How many tokens of greedy decoding each choice keeps up with.

    Token by token only those stay that have the highest log-probability there; choices that begin
    alike have equal ones as long as they do. One that has ended is compared by its own mean.
    """
    rounds = [0] * len(paths_logprobs)
    left = list(range(len(paths_logprobs)))
    for i in range(max(map(len, paths_logprobs))):
        values = [
            _total(path[i : i + 1]) if i < len(path) else _token_mean(path)
            for path in (paths_logprobs[choice] for choice in left)
        ]
        best = max(values)
        left = [choice for choice, value in zip(left, values, strict=True) if value == best]
        for choice in left:
            rounds[choice] = i + 1
        if len(left) == 1:
            break
    return rounds
