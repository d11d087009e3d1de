"""Named tensors in, one frozen set of fused weights out.

q, k, v and gate, up are fused here, once, so that a layer is four matrix products. Called by
`runner/load.py`; `sources.py` has the names and the two file formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...lang.errors import ModelError, UnsupportedModel
from .sources import TensorSource
from .spec import ModelSpec

Progress = Callable[[int, int, str], None]
"""Called after each tensor with (tensors done, tensors in all, canonical name)."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. Rows of `qkv` are q heads, k heads, v heads; of `gate_up` gate, then up.

    What a family lacks is None. `qk_norm` [n_heads + n_kv_heads, head_dim]: the norm weight of
    every query head, then of every key head.
    """

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    o_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    qk_norm: torch.Tensor | None = None
    attn_post_norm: torch.Tensor | None = None
    ffn_post_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model in one dtype.

    `embed` and `lm_head` are [vocab, hidden] and the same tensor where tied. `rope_factors`
    [head_dim / 2], float32, divides the rotary frequencies where a file brings it.
    """

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor
    rope_factors: torch.Tensor | None = None


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor a model of these facts must have."""
    q, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    layer = {
        "attn_norm": (spec.hidden,),
        "q": (q, spec.hidden),
        "k": (kv, spec.hidden),
        "v": (kv, spec.hidden),
        "o": (spec.hidden, q),
        "ffn_norm": (spec.hidden,),
        "gate": (spec.ffn, spec.hidden),
        "up": (spec.ffn, spec.hidden),
        "down": (spec.hidden, spec.ffn),
    }
    if spec.qkv_bias:
        layer |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if spec.o_bias:
        layer |= {"o_bias": (spec.hidden,)}
    if spec.mlp_bias:
        layer |= {"gate_bias": (spec.ffn,), "up_bias": (spec.ffn,), "down_bias": (spec.hidden,)}
    if spec.qk_norm:
        layer |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        layer |= {"attn_post_norm": (spec.hidden,), "ffn_post_norm": (spec.hidden,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab, spec.hidden)}
    for index in range(spec.n_layers):
        shapes |= {f"layers.{index}.{kind}": shape for kind, shape in layer.items()}
    shapes["final_norm"] = (spec.hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head"] = (spec.vocab, spec.hidden)
    return shapes


def load_weights(
    spec: ModelSpec,
    source: TensorSource,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> Weights:
    """Read, check, convert and fuse all tensors of a model, one at a time.

    Peak memory is the weights plus one tensor. Raises ModelError naming the tensor where one is
    missing or has another shape than `spec` says.
    """
    _check(spec, source)
    reader = _Reader(source, dtype, progress, len(source.shapes()))
    embed = reader.one("embed")
    layers = tuple(_layer(spec, reader, f"layers.{i}") for i in range(spec.n_layers))
    final_norm = reader.one("final_norm")
    lm_head = embed if spec.tied_embeddings else reader.one("lm_head")
    factors = None
    if "rope_factors" in source.shapes():
        factors = source.read("rope_factors").to(torch.float32)
    return Weights(embed, layers, final_norm, lm_head, factors)


def _check(spec: ModelSpec, source: TensorSource) -> None:
    found = source.shapes()
    wanted = expected_shapes(spec)
    for name, shape in wanted.items():
        if name not in found:
            raise ModelError(f"{source.origin}: tensor {name} {shape} is missing")
        if found[name] != shape:
            raise ModelError(
                f"{source.origin}: tensor {name} must have shape {shape}, found {found[name]}"
            )
    if found.get("rope_factors", (spec.head_dim // 2,)) != (spec.head_dim // 2,):
        raise ModelError(f"{source.origin}: rope_factors must hold {spec.head_dim // 2} numbers")
    for name in found:
        if name in wanted or name == "rope_factors":
            continue
        if re.sub(r"\d+", "0", name) not in wanted:
            raise UnsupportedModel(
                f"{source.origin}: tensor {name} is not part of a {spec.architecture} model as "
                "its header describes it; this variant is not supported"
            )
        raise ModelError(f"{source.origin}: tensor {name} has no place in {spec.n_layers} layers")


def _layer(spec: ModelSpec, reader: _Reader, prefix: str) -> LayerWeights:
    def read(wanted: bool, *kinds: str) -> torch.Tensor | None:
        return reader.stacked(*(f"{prefix}.{kind}" for kind in kinds)) if wanted else None

    return LayerWeights(
        attn_norm=reader.one(f"{prefix}.attn_norm"),
        qkv=reader.stacked(*(f"{prefix}.{kind}" for kind in "qkv")),
        o=reader.one(f"{prefix}.o"),
        ffn_norm=reader.one(f"{prefix}.ffn_norm"),
        gate_up=reader.stacked(f"{prefix}.gate", f"{prefix}.up"),
        down=reader.one(f"{prefix}.down"),
        qkv_bias=read(spec.qkv_bias, "q_bias", "k_bias", "v_bias"),
        o_bias=read(spec.o_bias, "o_bias"),
        gate_up_bias=read(spec.mlp_bias, "gate_bias", "up_bias"),
        down_bias=read(spec.mlp_bias, "down_bias"),
        qk_norm=_qk_norm(spec, reader, prefix) if spec.qk_norm else None,
        attn_post_norm=read(spec.post_norms, "attn_post_norm"),
        ffn_post_norm=read(spec.post_norms, "ffn_post_norm"),
    )


def _qk_norm(spec: ModelSpec, reader: _Reader, prefix: str) -> torch.Tensor:
    """One row a head, so that queries and keys are normed by one product."""
    q, k = reader.one(f"{prefix}.q_norm"), reader.one(f"{prefix}.k_norm")
    return torch.cat((q.expand(spec.n_heads, -1), k.expand(spec.n_kv_heads, -1)))


class _Reader:
    """Reads from a source into fresh memory of one dtype, and reports progress."""

    def __init__(
        self, source: TensorSource, dtype: torch.dtype, progress: Progress | None, total: int
    ) -> None:
        self._source = source
        self._shapes = source.shapes()
        self._dtype = dtype
        self._progress = progress
        self._total = total
        self._done = 0

    def stacked(self, *names: str) -> torch.Tensor:
        """Matrices of one width, joined along their rows."""
        heights = [self._shapes[name][0] for name in names]
        out = torch.empty((sum(heights), *self._shapes[names[0]][1:]), dtype=self._dtype)
        at = 0
        for name, height in zip(names, heights, strict=True):
            out[at : at + height].copy_(self._source.read(name))
            at += height
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, name)
        return out

    def one(self, name: str) -> torch.Tensor:
        return self.stacked(name)
