"""The pieces of a llama block as plain functions over flat tokens.

No state, no weights of their own, no idea of sequences or pages. Called by `decoder.py`.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import linear, rms_norm, silu

from .spec import ModelSpec, RopeScaling

FEW_ROWS = range(2, 65)
"""Row counts for which `project` swaps the operands."""


def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, in] times weight [out, in] transposed -> [T, out], contiguous.

    For a few rows in float32 on the CPU the product is taken as weight times x transposed: the BLAS
    behind torch then streams the large operand once, two to three times faster than `linear` from
    2 to 64 rows (measured on AVX2), the same for one row, slower for hundreds.
    """
    if len(x) in FEW_ROWS and x.dtype == torch.float32 and x.device.type == "cpu":
        return torch.mm(weight, x.t()).t().contiguous()
    return linear(x, weight)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension; sums in float32 whatever the dtype."""
    return rms_norm(x, weight.shape, weight, eps)


def gated_mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)); `gate_up` [2 * ffn, hidden] holds gate's rows, then up's."""
    gate, up = project(x, gate_up).chunk(2, dim=-1)
    return project(silu(gate).mul_(up), down)


def rope_frequencies(spec: ModelSpec, factors: torch.Tensor | None) -> torch.Tensor:
    """Radians a position, [head_dim / 2] float32; a file's own `factors` divide them."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    if spec.rope_scaling is not None:
        frequencies = _stretch(frequencies, spec.rope_scaling)
    return frequencies if factors is None else frequencies / factors


def _stretch(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Apply `spec.RopeScaling`; its docstring has the rule."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_context * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


def rope_table(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines for one step, each [T, 1, head_dim]; feed them to `rotate`.

    The angle is computed in float32 and only its cosine and sine are rounded to `dtype`: a
    bfloat16 position of 8,000 would be off by dozens.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    full_cos = torch.cat((cos, cos), dim=-1).to(dtype)
    full_sin = torch.cat((-sin, sin), dim=-1).to(dtype)
    return full_cos[:, None, :], full_sin[:, None, :]


def rotate(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of heads [T, n, head_dim]: the first half turns against the second."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos, swapped, signed_sin)
