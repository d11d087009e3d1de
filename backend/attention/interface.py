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


class StepAttention(Protocol):
    """A planned step. Good for every layer of that step, and for no other."""

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Store the new keys and values, then attend.

        q [T, n_heads, head_dim]; k, v [T, n_kv_heads, head_dim], rotary applied, T the tokens of
        all rows in order; n_heads is a multiple of n_kv_heads, and consecutive query heads share a
        key/value head. k_cache, v_cache [n_slots, n_kv_heads, head_dim], one layer's pool, written
        in place. All of one dtype and device. Scores are scaled by 1 / sqrt(head_dim). Returns
        [T, n_heads, head_dim].
        """
        ...


class Attention(Protocol):
    """A way to attend over paged KV."""

    def plan(self, rows: Sequence[RowShape]) -> StepAttention:
        """Prepare one step: everything that does not differ between layers is built here."""
        ...
