"""The tensors of a model file under our own names, whatever the file calls them.

Canonical names: `embed`, `final_norm`, `lm_head`, `rope_factors` and, per layer i,
`layers.i.{attn_norm,q,k,v,o,ffn_norm,gate,up,down}`, `layers.i.{q_norm,k_norm}` (one head's size),
`layers.i.{attn_post_norm,ffn_post_norm}`, and a matrix's bias as its name with `_bias`; matrices
are [out, in]. Knows names and row orders, not what is done with a tensor. Made by `open.py`, read
by `weights.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...lang.errors import UnsupportedModel
from .family import BY_NAME
from .gguf_file import GgufFile
from .hf_folder import HfFolder
from .spec import ModelSpec

_GGUF_NAMES = {
    "token_embd.weight": "embed",
    "output_norm.weight": "final_norm",
    "output.weight": "lm_head",
    "rope_freqs.weight": "rope_factors",
}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_GGUF_LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_output": "o",
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "ffn_post_norm",
}
_HF_NAMES = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "lm_head",
}
_HF_LAYER = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)")
_HF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "self_attn.o_proj": "o",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_HF_POST_NORM_NAMES = _HF_LAYER_NAMES | {
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "ffn_post_norm",
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


class GgufSource:
    """A GGUF file under canonical names, with its rotary row order undone."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        """`spec` supplies the head counts and the family."""
        self.origin = str(file.path)
        self._file = file
        self._names = _rename(file.index.tensors, _gguf_name, self.origin)
        paired = BY_NAME[spec.architecture].paired_rows
        self._paired = {"q": spec.n_heads, "k": spec.n_kv_heads} if paired else {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return {ours: self._file.shape(theirs) for ours, theirs in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        """See `TensorSource`; float32."""
        array = self._file.read(self._names[name])
        n_heads = self._paired.get(name.rpartition(".")[2])
        if n_heads is not None:
            array = halves_from_pairs(array, n_heads)
        return torch.from_numpy(np.ascontiguousarray(array))


class HfSource:
    """A Hugging Face folder under canonical names."""

    def __init__(self, folder: HfFolder, spec: ModelSpec) -> None:
        """Where `spec` ties the head, a stored copy is ignored, as transformers does."""
        self.origin = str(folder.path)
        self._folder = folder
        kinds = _HF_POST_NORM_NAMES if spec.post_norms else _HF_LAYER_NAMES
        self._names = _rename(folder.names(), lambda name: _hf_name(name, kinds), self.origin)
        self._norms_from_zero = BY_NAME[spec.architecture].norms_from_zero
        if spec.tied_embeddings:
            self._names.pop("lm_head", None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return {ours: self._folder.shape(theirs) for ours, theirs in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        """See `TensorSource`; the stored dtype, norms stored minus one in float32."""
        tensor = self._folder.read(self._names[name])
        if self._norms_from_zero and name.endswith("norm"):
            return tensor.float() + 1.0
        return tensor


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
    return _layer_name(_GGUF_LAYER.fullmatch(name), _GGUF_LAYER_NAMES)


def _hf_name(name: str, kinds: dict[str, str]) -> str | None:
    if name in _HF_NAMES:
        return _HF_NAMES[name]
    return _layer_name(_HF_LAYER.fullmatch(name), kinds)


def _layer_name(match: re.Match[str] | None, kinds: dict[str, str]) -> str | None:
    kind = kinds.get(match[2]) if match else None
    if match is None or kind is None:
        return None
    return f"layers.{match[1]}.{kind}" + ("_bias" if match[3] == "bias" else "")


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
                f"{origin}: tensor {name} is not part of a decoder we know; "
                "this variant is not supported"
            )
        found[ours] = name
    return found
