"""What a decoder asks of attention: plan once a step, then run once a layer.

Holds the contract and the one value it is planned from; knows no model, no scheduler and no owner
of memory. `reference.py` is the oracle; other backends must agree with it.

A slot is one token's place in the KV pool: slot = page * page_size + row in the page. Position p of
a sequence lives in slot `pages[p // page_size] * page_size + p % page_size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class RowShape:
    """Where one sequence's share of a step stands.

    Its `n_tokens` >= 1 new tokens take slots of positions `start`.. in order; `pages` covers
    `start + n_tokens` slots, and what lies before `start` is in the pool already. With `parents`
    None token i sees all positions up to `start + i`. Otherwise `parents[i]` < i (or -1) and token
    i sees the positions before `start`, its ancestors among the new tokens, and itself.
    """

    n_tokens: int
    start: int
    pages: Sequence[int]
    parents: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How one layer scores. Layers of one model may differ.

    `window` w >= 1: a token sees only positions above its own minus w, itself included; None: all
    that its row lets it see. Positions of a tree's tokens are start + depth. `scale` multiplies the
    scores, None is 1 / sqrt(head_dim). `softcap` c > 0: a scaled score s becomes c * tanh(s / c)
    before anything is masked; None: it stays.
    """

    window: int | None = None
    scale: float | None = None
    softcap: float | None = None


PLAIN = ScoreRule()
"""Sees everything, usual scale, no cap: all layers of the llama family."""


class StepAttention(Protocol):
    """A planned step. Good for every layer of that step, and for no other."""

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        rule: ScoreRule = PLAIN,
    ) -> torch.Tensor:
        """Store the new keys and values, then attend.

        q [T, n_heads, head_dim]; k, v [T, n_kv_heads, head_dim], rotary applied, T the tokens of
        all rows in order; n_heads is a multiple of n_kv_heads, and consecutive query heads share a
        key/value head. k_cache, v_cache [n_slots, n_kv_heads, head_dim], one layer's pool, written
        in place. All of one dtype and device. `rule` is one of those the step was planned for: it
        says what is seen and how it is scored, never what is stored. Returns
        [T, n_heads, head_dim].
        """
        ...


class Attention(Protocol):
    """A way to attend over paged KV."""

    def plan(
        self, rows: Sequence[RowShape], rules: Sequence[ScoreRule] = (PLAIN,)
    ) -> StepAttention:
        """Prepare one step for layers of these `rules`.

        All index tensors and masks are built here, once a step; layers with the same window share
        them.
        """
        ...
