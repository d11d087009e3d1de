"""The decoder over flat tokens, in plain torch: one for all families, driven by `ModelSpec`.

All rows of a step stand one after another in [T], without padding; which token sees what is the
attention's business. Holds weights, never KV (the caller lends the pool). Built by `registry.py`,
called by `runner/runner.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..attention.interface import ScoreRule, StepAttention
from .layers import (
    gated,
    head_norm,
    norm,
    project,
    rope_frequencies,
    rope_table,
    rotate,
    soft_cap,
)
from .spec import ModelSpec
from .weights import LayerWeights, Weights

Rope = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One block: its weights, how it scores, and which rotary table turns it (None: none)."""

    weights: LayerWeights
    rule: ScoreRule
    rope: int | None


class Decoder:
    """A model of any family. Thread-compatible: it changes nothing of its own while running.

    `rules`: the distinct ways its layers score; a step's attention must be planned for them.
    """

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        """`weights` fit `spec` (`load_weights` checked it)."""
        self.spec = spec
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self._layers = tuple(_layer(spec, i, w) for i, w in enumerate(weights.layers))
        self.rules = tuple({layer.rule: None for layer in self._layers})
        ropes = [rope_frequencies(spec, weights.rope_factors)]
        if spec.local_rope_theta is not None:
            ropes.append(rope_frequencies(spec, None, spec.local_rope_theta))
        self._ropes = [frequencies.to(self.device) for frequencies in ropes]
        self._magnitudes = [spec.rope_scaling.magnitude if spec.rope_scaling else 1.0, 1.0]

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states after the last block, [T, hidden], not yet normed.

        `tokens`, `positions` [T] int64. `attention` was planned for `rules`. `pool`
        [n_layers, 2, n_slots, n_kv_heads, head_dim], keys at 0 and values at 1; the step's own
        slots are written.
        """
        x = self.weights.embed.index_select(0, tokens)
        if self.spec.embed_scale != 1.0:
            x *= self.spec.embed_scale
        ropes = [
            rope_table(positions, frequencies, self.dtype, magnitude)
            for frequencies, magnitude in zip(self._ropes, self._magnitudes, strict=False)
        ]
        for layer, cache in zip(self._layers, pool, strict=True):
            x = x + self._attend(x, layer, ropes, attention, cache)
            x = x + self._mlp(x, layer.weights)
        return x

    def _attend(
        self,
        x: torch.Tensor,
        layer: _Layer,
        ropes: list[Rope],
        attention: StepAttention,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        spec, weights = self.spec, layer.weights
        n_rotated = spec.n_heads + spec.n_kv_heads
        qkv = project(norm(x, weights.attn_norm, spec.norm_eps), weights.qkv, weights.qkv_bias)
        heads = qkv.view(-1, n_rotated + spec.n_kv_heads, spec.head_dim)
        turned = heads[:, :n_rotated]
        if weights.qk_norm is not None:
            turned = head_norm(turned, weights.qk_norm, spec.norm_eps)
        if layer.rope is not None:
            turned = rotate(turned, *ropes[layer.rope])
        q, k, v = turned[:, : spec.n_heads], turned[:, spec.n_heads :], heads[:, n_rotated:]
        seen = attention.run(q, k, v, cache[0], cache[1], layer.rule)
        out = project(seen.flatten(1), weights.o, weights.o_bias)
        if weights.attn_post_norm is None:
            return out
        return norm(out, weights.attn_post_norm, spec.norm_eps)

    def _mlp(self, x: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
        spec = self.spec
        normed = norm(x, weights.ffn_norm, spec.norm_eps)
        inner = gated(project(normed, weights.gate_up, weights.gate_up_bias), spec.activation)
        out = project(inner, weights.down, weights.down_bias)
        if weights.ffn_post_norm is None:
            return out
        return norm(out, weights.ffn_post_norm, spec.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [M, vocab] float32 of hidden states [M, hidden] from `forward`."""
        normed = norm(hidden, self.weights.final_norm, self.spec.norm_eps)
        logits = project(normed, self.weights.lm_head).float()
        cap = self.spec.final_softcap
        return logits if cap is None else soft_cap(logits, cap)


def _layer(spec: ModelSpec, index: int, weights: LayerWeights) -> _Layer:
    sliding = index in spec.sliding_layers
    rule = ScoreRule(spec.window if sliding else None, spec.attn_scale, spec.attn_softcap)
    rope: int | None = 1 if sliding and spec.local_rope_theta is not None else 0
    return _Layer(weights, rule, None if index in spec.plain_layers else rope)
