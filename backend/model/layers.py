"""The pieces of a decoder block as plain functions over flat tokens.

No state, no weights of their own, no idea of sequences or pages. Called by `decoder.py`.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import gelu, linear, rms_norm, silu

from .spec import ModelSpec, RopeScaling

FEW_ROWS = range(2, 65)
"""Row counts for which `project` swaps the operands."""


def project(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, in] times weight [out, in] transposed, plus bias [out] -> [T, out], contiguous.

    For a few rows in float32 on the CPU the product is taken as weight times x transposed: the BLAS
    behind torch then streams the large operand once, two to three times faster than `linear` from
    2 to 64 rows (measured on AVX2), the same for one row, slower for hundreds.
    """
    if len(x) in FEW_ROWS and x.dtype == torch.float32 and x.device.type == "cpu":
        out = torch.mm(weight, x.t()).t().contiguous()
        return out if bias is None else out.add_(bias)
    return linear(x, weight, bias)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension; sums in float32 whatever the dtype."""
    return rms_norm(x, weight.shape, weight, eps)


def head_norm(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`norm` of each of heads [T, n, head_dim] with its own row of `weight` [n, head_dim]."""
    return rms_norm(heads, heads.shape[-1:], None, eps).mul_(weight)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap): nearly x where small, never beyond the cap. Consumes x."""
    return x.div_(cap).tanh_().mul_(cap)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """act(gate) * up of [T, 2 * ffn], gate's columns first -> [T, ffn]. See `spec.ACTIVATIONS`."""
    gate, up = gate_up.chunk(2, dim=-1)
    acted = silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")
    return acted.mul_(up)


def rope_frequencies(
    spec: ModelSpec, factors: torch.Tensor | None, local_theta: float | None = None
) -> torch.Tensor:
    """Radians a position, [head_dim / 2] float32; a file's own `factors` divide them.

    With `local_theta` that base, unscaled, instead of the model's own.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    if local_theta is not None:
        return 1.0 / (local_theta**exponents)
    frequencies = 1.0 / (spec.rope_theta**exponents)
    if spec.rope_scaling is not None:
        frequencies = _stretch(frequencies, spec.rope_scaling)
    return frequencies if factors is None else frequencies / factors


def _stretch(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Apply `spec.RopeScaling`; its docstring has the rule."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "yarn":
        keep = _yarn_share(frequencies, scaling)
        return frequencies * (keep + (1.0 - keep) / scaling.factor)
    turns = scaling.original_context * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


def _yarn_share(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """How much of each frequency stays as it is: 1 for the fast ones, 0 for the slow ones."""
    n = len(frequencies)
    # Frequency i is base ** (-i / n), so the index of a turn count follows from any two of them.
    log_base = -n * math.log(float(frequencies[-1])) / (n - 1) if n > 1 else 1.0

    def index(turns: float) -> float:
        return n * math.log(scaling.original_context / (turns * 2 * math.pi)) / log_base

    low, high = index(scaling.high_freq), index(scaling.low_freq)
    if scaling.round_range:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * n - 1)
    ramp = (torch.arange(n, dtype=torch.float32) - low) / max(high - low, 1e-3)
    return 1.0 - ramp.clamp(0.0, 1.0)


def rope_table(
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    dtype: torch.dtype,
    magnitude: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines for one step, each [T, 1, head_dim]; feed them to `rotate`.

    The angle is computed in float32 and only its cosine and sine are rounded to `dtype`: a
    bfloat16 position of 8,000 would be off by dozens. Both are multiplied by `magnitude`.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    if magnitude != 1.0:
        cos, sin = cos * magnitude, sin * magnitude
    full_cos = torch.cat((cos, cos), dim=-1).to(dtype)
    full_sin = torch.cat((-sin, sin), dim=-1).to(dtype)
    return full_cos[:, None, :], full_sin[:, None, :]


def rotate(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of heads [T, n, head_dim]: the first half turns against the second."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos, swapped, signed_sin)
