"""Logits in, tokens out.

The order of operations for one row:

1. Log-probabilities are taken of the raw distribution: the model's own at temperature 1, before
   anything below. That holds for the drawn token's and for those of the likeliest.
2. repetition_penalty r: for each id that stands in the prompt or was drawn, a logit above 0 is
   divided by r, any other multiplied by it (Keskar et al., "CTRL", 2019, section 4.1, with the
   sign minded).
3. frequency and presence penalties, over the drawn tokens alone: an id drawn n > 0 times loses
   n * frequency_penalty + presence_penalty.
4. logit_bias is added.
5. Banned ids (end tokens before min_tokens) lose all.
6. temperature 0: the largest logit wins, of equals the lowest id. The rest does not apply; it could
   not change the winner. Else the logits are divided by the temperature, then softmax.
7. top_k > 0: the k likeliest stay, of equals the lowest ids.
8. top_p < 1: of what is left, renormalised and sorted by probability, of equals the lowest id
   first, stays the shortest prefix that sums to at least top_p (so the token that crosses the line
   stays, and one always does).
9. min_p > 0: what is below min_p times the likeliest's probability goes.
10. u in [0, 1) = `philox.uniform(seed, position)`; the kept tokens are walked in order of id until
    their running sum exceeds u times their total.

All in float64 but for rows where step 6 comes first. A row's draw is a pure function of its own
logits and `Draw`: such rows are taken one by one, since a sum over a batch may add in another order
than a sum over one row. Called by `runner.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..sched.plan import Draw
from .philox import uniform

NOT_FINITE = (
    "the model's output for this sequence holds a NaN or an infinity; the weights or the dtype "
    "are at fault (try dtype float32)"
)

Weights = npt.NDArray[np.float64]
Kept = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row's draw; `error` alone where its logits are not finite.

    `top`: (id, raw log-probability) of the likeliest tokens, best first, of equals the lowest id.
    """

    token: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: str | None = None


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """Draw one token a row from `logits` [len(draws), vocab] float32."""
    # An infinity or a NaN anywhere survives the sum, at a tenth of the cost of looking at each.
    finite = logits.sum(-1).isfinite().tolist()
    tokens = logits.argmax(-1).tolist()
    for i, draw in enumerate(draws):
        if finite[i] and not draw.takes_largest:
            tokens[i] = draw_one(logits[i].cpu().numpy(), draw)
    asked = [i for i, draw in enumerate(draws) if finite[i] and (draw.logprob or draw.top)]
    raw: dict[int, npt.NDArray[np.float32]] = {}
    if asked:
        raw = dict(zip(asked, logits[asked].log_softmax(-1).cpu().numpy(), strict=True))
    return [
        _drawn(tokens[i], draw, raw.get(i)) if finite[i] else Drawn(error=NOT_FINITE)
        for i, draw in enumerate(draws)
    ]


def _drawn(token: int, draw: Draw, raw: npt.NDArray[np.float32] | None) -> Drawn:
    if raw is None:
        return Drawn(token)
    return Drawn(token, float(raw[token]) if draw.logprob else None, likeliest(raw, draw.top))


def likeliest(raw: npt.NDArray[np.float32], n: int) -> tuple[tuple[int, float], ...]:
    """The `n` largest of `raw` [vocab] as (id, value), best first, of equals the lowest id."""
    if n == 0:
        return ()
    ids = np.flatnonzero(largest(raw, n))
    ranked = ids[np.argsort(-raw[ids], kind="stable")]
    return tuple((int(i), float(raw[i])) for i in ranked)


def draw_one(logits: npt.NDArray[np.float32], draw: Draw) -> int:
    """Steps 2 to 10 of the module docstring for one row [vocab] of finite logits."""
    rules = draw.rules
    shifted = shift(logits, draw)
    if rules.temperature == 0:
        return int(shifted.argmax())
    ids = None  # of the logits that are left; None: all
    if 0 < rules.top_k < len(shifted):  # dividing keeps the order; what goes needs no exp
        ids = np.flatnonzero(largest(shifted, rules.top_k))
        shifted = shifted[ids]
    shifted -= shifted.max()  # before the division: a tiny temperature must not overflow
    with np.errstate(over="ignore"):  # and if it does all the same, minus infinity is right
        shifted /= rules.temperature
    weights = np.exp(shifted, out=shifted)
    if rules.top_p < 1.0:
        weights[~nucleus(weights, rules.top_p)] = 0.0
    if rules.min_p > 0.0:
        weights[weights < rules.min_p * weights.max()] = 0.0
    running = np.cumsum(weights)
    found = int(np.searchsorted(running, uniform(draw.seed, draw.position) * running[-1], "right"))
    # u < 1, but the product may round up to the total.
    found = min(found, int(np.flatnonzero(weights)[-1]))
    return found if ids is None else int(ids[found])


def shift(logits: npt.NDArray[np.float32], draw: Draw) -> Weights:
    """Steps 2 to 5: a float64 copy of `logits` [vocab] with penalties, bias and bans in it."""
    rules, shifted = draw.rules, logits.astype(np.float64)
    if draw.past.seen:
        seen = np.asarray(draw.past.seen)
        old, r = shifted[seen], rules.repetition_penalty
        shifted[seen] = np.where(old > 0, old / r, old * r)
    if draw.past.drawn:
        ids, counts = np.asarray(draw.past.drawn).T
        shifted[ids] -= counts * rules.frequency_penalty + rules.presence_penalty
    for token, bias in rules.logit_bias:
        shifted[token] += bias
    if draw.banned:
        shifted[list(draw.banned)] = -np.inf
    return shifted


def largest(values: npt.NDArray[np.floating], k: int) -> Kept:
    """Which `k` of `values` [vocab] are the largest, of equals the lowest ids; all if fewer."""
    if k >= len(values):
        return np.ones(len(values), dtype=bool)
    line = np.partition(values, -k)[-k]
    kept = np.asarray(values > line)
    ties = np.flatnonzero(values == line)
    kept[ties[: k - int(kept.sum())]] = True
    return kept


def nucleus(weights: Weights, top_p: float) -> Kept:
    """Which tokens step 8 keeps. `weights` [vocab]: probabilities up to a common factor."""
    total = float(weights.sum())
    # What is left out below sums to less than 1 - top_p, so the prefix lies in what is kept:
    # sorting a few hundred candidates instead of the whole vocabulary.
    candidates = np.flatnonzero(weights >= (1.0 - top_p) * total / len(weights))
    ranked = candidates[np.argsort(-weights[candidates], kind="stable")]
    n_kept = int(np.searchsorted(np.cumsum(weights[ranked]), top_p * total, "left")) + 1
    kept = np.zeros(len(weights), dtype=bool)
    kept[ranked[:n_kept]] = True
    return kept
