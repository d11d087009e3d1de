"""Logits in, tokens out.

The order of operations for one row, in float64 unless temperature is 0:

1. temperature 0: the largest logit wins, of equals the lowest id; nothing below applies.
2. Divide the logits by the temperature, then softmax.
3. top_p < 1: sort by probability, of equals the lowest id first, and keep the shortest prefix that
   sums to at least top_p (so the token that crosses the line stays, and one always does).
4. Draw u in [0, 1) = `philox.uniform(seed, position)` and walk the kept tokens in order of id
   until their running sum exceeds u times their total.

A row's draw is a pure function of its own logits, seed and position: sampled rows are taken one by
one, since a sum over a batch may add in another order than a sum over one row. The log-probability
reported is that of the raw distribution (temperature 1, nothing filtered). Called by `runner.py`.
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row's draw; `error` alone where its logits are not finite."""

    token: int | None = None
    logprob: float | None = None
    error: str | None = None


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """Draw one token a row from `logits` [len(draws), vocab] float32."""
    # An infinity or a NaN anywhere survives the sum, at a tenth of the cost of looking at each.
    finite = logits.sum(-1).isfinite().tolist()
    tokens = logits.argmax(-1).tolist()
    for i, draw in enumerate(draws):
        if finite[i] and draw.temperature > 0:
            tokens[i] = draw_one(logits[i].cpu().numpy(), draw)
    asked = [i for i, draw in enumerate(draws) if draw.logprob and finite[i]]
    logprobs: dict[int, float] = {}
    if asked:
        picked = torch.tensor([[tokens[i]] for i in asked], device=logits.device)
        raw = logits[asked].log_softmax(-1).gather(1, picked)
        logprobs = dict(zip(asked, raw.flatten().tolist(), strict=True))
    return [
        Drawn(tokens[i], logprobs.get(i)) if finite[i] else Drawn(error=NOT_FINITE)
        for i in range(len(draws))
    ]


def draw_one(logits: npt.NDArray[np.float32], draw: Draw) -> int:
    """Steps 2 to 4 of the module docstring for one row [vocab] of finite logits."""
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()  # before the division: a tiny temperature must not overflow
    scaled /= draw.temperature
    weights = np.exp(scaled, out=scaled)
    if draw.top_p < 1.0:
        weights[~nucleus(weights, draw.top_p)] = 0.0
    running = np.cumsum(weights)
    found = int(np.searchsorted(running, uniform(draw.seed, draw.position) * running[-1], "right"))
    # u < 1, but the product may round up to the total.
    return min(found, int(np.flatnonzero(weights)[-1]))


def nucleus(weights: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.bool_]:
    """Which tokens step 3 keeps. `weights` [vocab]: probabilities up to a common factor."""
    total = float(weights.sum())
    # What is left out below sums to less than 1 - top_p, so the prefix lies in what is kept:
    # sorting a few hundred candidates instead of the whole vocabulary.
    candidates = np.flatnonzero(weights >= (1.0 - top_p) * total / len(weights))
    ranked = candidates[np.argsort(-weights[candidates], kind="stable")]
    n_kept = int(np.searchsorted(np.cumsum(weights[ranked]), top_p * total, "left")) + 1
    kept = np.zeros(len(weights), dtype=bool)
    kept[ranked[:n_kept]] = True
    return kept
