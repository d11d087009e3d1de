"""Named tensors in, one frozen set of fused weights out.

Canonical names: `embed`, `final_norm`, `lm_head`, `rope_factors` and, per layer i,
`layers.i.{attn_norm,q,k,v,o,ffn_norm,gate,up,down}`; matrices are [out, in]. q, k, v and gate, up
are fused here, once, so that a layer is four matrix products. Called by `registry.py`; the two file
formats enter as a `TensorSource`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...lang.errors import ModelError, UnsupportedModel
from .gguf_file import GgufFile
from .hf_folder import HfFolder
from .spec import ModelSpec

Progress = Callable[[int, int, str], None]
"""Called after each tensor with (tensors done, tensors in all, canonical name)."""

_GGUF_NAMES = {
    "token_embd.weight": "embed",
    "output_norm.weight": "final_norm",
    "output.weight": "lm_head",
    "rope_freqs.weight": "rope_factors",
}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_GGUF_LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
_HF_NAMES = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "lm_head",
}
_HF_LAYER = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.weight")
_HF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


class TensorSource(Protocol):
    """Tensors under canonical names. `origin` names the file in messages."""

    origin: str

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape, matrices [out, in]."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor, any float dtype; the caller copies it."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. Rows of `qkv` are q heads, k heads, v heads; of `gate_up` gate, then up."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


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


class GgufSource:
    """A llama GGUF under canonical names, with its rotary row order undone."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        """`spec` supplies the head counts."""
        self.origin = str(file.path)
        self._file = file
        self._spec = spec
        self._names = _rename(file.index.tensors, _gguf_name, self.origin)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return {ours: self._file.shape(theirs) for ours, theirs in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        """See `TensorSource`; float32."""
        array = self._file.read(self._names[name])
        if name.endswith(".q"):
            array = halves_from_pairs(array, self._spec.n_heads)
        elif name.endswith(".k"):
            array = halves_from_pairs(array, self._spec.n_kv_heads)
        return torch.from_numpy(np.ascontiguousarray(array))


class HfSource:
    """A Hugging Face folder under canonical names."""

    def __init__(self, folder: HfFolder, tied: bool) -> None:
        """With `tied`, a stored copy of the output head is ignored, as transformers does."""
        self.origin = str(folder.path)
        self._folder = folder
        self._names = _rename(folder.names(), _hf_name, self.origin)
        if tied:
            self._names.pop("lm_head", None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return {ours: self._folder.shape(theirs) for ours, theirs in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        """See `TensorSource`; the stored dtype."""
        return self._folder.read(self._names[name])


def halves_from_pairs(rows: npt.NDArray[np.float32], n_heads: int) -> npt.NDArray[np.float32]:
    """Undo the row order of a llama GGUF's q or k matrix [n_heads * head_dim, in].

    GGUF files keep the two members of a rotary pair next to each other; the decoder rotates the
    first half of a head against the second. The head count is the matrix's own: for k the number of
    key/value heads, else rows of different heads are mixed.
    """
    grouped = rows.reshape(n_heads, -1, 2, *rows.shape[1:])
    return grouped.swapaxes(1, 2).reshape(rows.shape)


def _gguf_name(name: str) -> str | None:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    match = _GGUF_LAYER.fullmatch(name)
    kind = _GGUF_LAYER_NAMES.get(match[2]) if match else None
    return f"layers.{match[1]}.{kind}" if match and kind else None


def _hf_name(name: str) -> str | None:
    if name in _HF_NAMES:
        return _HF_NAMES[name]
    match = _HF_LAYER.fullmatch(name)
    kind = _HF_LAYER_NAMES.get(match[2]) if match else None
    return f"layers.{match[1]}.{kind}" if match and kind else None


def _rename(
    names: Iterable[str], canonical: Callable[[str], str | None], origin: str
) -> dict[str, str]:
    """Canonical name -> the file's own. A tensor we would ignore would change the model: refuse."""
    found: dict[str, str] = {}
    for name in names:
        if name.endswith("rotary_emb.inv_freq"):  # a derived constant of old checkpoints
            continue
        ours = canonical(name)
        if ours is None:
            raise UnsupportedModel(
                f"{origin}: tensor {name} is not part of a llama-type decoder; "
                "this variant is not supported"
            )
        found[ours] = name
    return found


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
    layers = tuple(_layer(reader, f"layers.{i}") for i in range(spec.n_layers))
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
        if name not in wanted and name != "rope_factors":
            raise ModelError(
                f"{source.origin}: tensor {name} has no place in {spec.n_layers} layers"
            )


def _layer(reader: _Reader, prefix: str) -> LayerWeights:
    return LayerWeights(
        attn_norm=reader.one(f"{prefix}.attn_norm"),
        qkv=reader.stacked(*(f"{prefix}.{kind}" for kind in "qkv")),
        o=reader.one(f"{prefix}.o"),
        ffn_norm=reader.one(f"{prefix}.ffn_norm"),
        gate_up=reader.stacked(f"{prefix}.gate", f"{prefix}.up"),
        down=reader.one(f"{prefix}.down"),
    )


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
