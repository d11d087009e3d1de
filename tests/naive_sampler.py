"""What the sampler should do with one row, written out token by token in the documented order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from branchwork.backend.sched.plan import Draw


def shifted(logits: Sequence[float], draw: Draw) -> list[float]:
    """Penalties, bias and bans."""
    rules, bias, counts = draw.rules, dict(draw.rules.logit_bias), dict(draw.past.drawn)
    found = []
    for token, logit in enumerate(logits):
        if token in draw.past.seen:
            r = rules.repetition_penalty
            logit = logit / r if logit > 0 else logit * r
        n = counts.get(token, 0)
        if n > 0:
            logit -= n * rules.frequency_penalty + rules.presence_penalty
        logit += bias.get(token, 0.0)
        found.append(-math.inf if token in draw.banned else logit)
    return found


def distribution(logits: Sequence[float], draw: Draw) -> list[float]:
    """The probability of each token."""
    rules, now = draw.rules, shifted(logits, draw)
    ids = range(len(now))
    if rules.temperature == 0:
        best = max(ids, key=lambda i: (now[i], -i))
        return [float(i == best) for i in ids]
    top = max(now)
    p = [math.exp((logit - top) / rules.temperature) for logit in now]
    ranked = sorted(ids, key=lambda i: (-p[i], i))
    if rules.top_k:
        p = _only(p, ranked[: rules.top_k])
    if rules.top_p < 1:
        kept, mass = [], 0.0
        for i in ranked:
            if mass < rules.top_p * math.fsum(p) and p[i] > 0:
                kept.append(i)
            mass += p[i]
        p = _only(p, kept)
    p = _only(p, [i for i in ids if p[i] >= rules.min_p * max(p)])
    return [value / math.fsum(p) for value in p]


def _only(p: list[float], kept: Sequence[int]) -> list[float]:
    keep = set(kept)
    return [value if i in keep else 0.0 for i, value in enumerate(p)]
