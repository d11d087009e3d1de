"""The decoder of the llama family over flat tokens, in plain torch.

All rows of a step stand one after another in [T], without padding; which token sees what is the
attention's business. Holds weights, never KV (the caller lends the pool). Built by `registry.py`,
called by `runner/runner.py`.
"""

from __future__ import annotations

import torch

from ..attention.interface import StepAttention
from .layers import gated_mlp, norm, project, rope_frequencies, rope_table, rotate
from .spec import ModelSpec
from .weights import LayerWeights, Weights


class Decoder:
    """A llama-type model. Thread-compatible: it changes nothing of its own while running."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        """`weights` fit `spec` (`load_weights` checked it)."""
        self.spec = spec
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        factors = weights.rope_factors
        self._frequencies = rope_frequencies(spec, factors).to(self.device)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states after the last block, [T, hidden], not yet normed.

        `tokens`, `positions` [T] int64. `pool` [n_layers, 2, n_slots, n_kv_heads, head_dim], keys
        at 0 and values at 1; the step's own slots are written.
        """
        x = self.weights.embed.index_select(0, tokens)
        rope = rope_table(positions, self._frequencies, self.dtype)
        for layer, weights in enumerate(self.weights.layers):
            x = self._block(x, weights, rope, attention, pool[layer])
        return x

    def _block(
        self,
        x: torch.Tensor,
        weights: LayerWeights,
        rope: tuple[torch.Tensor, torch.Tensor],
        attention: StepAttention,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        spec = self.spec
        n_rotated = spec.n_heads + spec.n_kv_heads
        qkv = project(norm(x, weights.attn_norm, spec.norm_eps), weights.qkv)
        heads = qkv.view(-1, n_rotated + spec.n_kv_heads, spec.head_dim)
        turned = rotate(heads[:, :n_rotated], *rope)
        q, k = turned[:, : spec.n_heads], turned[:, spec.n_heads :]
        seen = attention.run(q, k, heads[:, n_rotated:], cache[0], cache[1])
        x = x + project(seen.flatten(1), weights.o)
        return x + gated_mlp(
            norm(x, weights.ffn_norm, spec.norm_eps), weights.gate_up, weights.down
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [M, vocab] float32 of hidden states [M, hidden] from `forward`."""
        normed = norm(hidden, self.weights.final_norm, self.spec.norm_eps)
        return project(normed, self.weights.lm_head).float()
