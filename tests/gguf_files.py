"""Writes tiny GGUF files the way a converter does, from tensors under Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from tiny import SPEC, tiny_tensors

from branchwork.backend.model.spec import ModelSpec

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PAIRED = ("llama", "smollm3")
"""Architectures whose converter reorders the rows of q and k."""
FROM_ZERO = ("gemma2", "gemma3")
"""Architectures whose norm weights are stored minus one by transformers, whole in GGUF."""


def gguf_name(name: str, post_norms: bool = False) -> str:
    """`model.layers.0.self_attn.q_proj.bias` -> `blk.0.attn_q.bias`."""
    stem, _, last = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{last}"
    _, _, layer, kind = stem.split(".", 3)
    names = GGUF_NAMES | POST_NORM_NAMES if post_norms else GGUF_NAMES
    return f"blk.{layer}.{names[kind]}.{last}"


def pairs_from_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """What a converter does to q and k: row i of a head's second half goes next to row i of its
    first. Written out row by row, so as not to share a mistake with the loader."""
    dim = len(rows) // n_heads
    order = [
        h * dim + half * (dim // 2) + i
        for h in range(n_heads)
        for i in range(dim // 2)
        for half in (0, 1)
    ]
    return np.ascontiguousarray(rows[order])


def add_facts(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    writer.add_context_length(spec.context_length)
    writer.add_embedding_length(spec.hidden)
    writer.add_block_count(spec.n_layers)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.n_heads)
    writer.add_head_count_kv(spec.n_kv_heads)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_token_list([f"<{i}>" for i in range(spec.vocab)])
    if spec.window is not None:
        writer.add_sliding_window(spec.window)
    if spec.attn_softcap is not None:
        writer.add_attn_logit_softcapping(spec.attn_softcap)
    if spec.final_softcap is not None:
        writer.add_final_logit_softcapping(spec.final_softcap)
    if spec.rope_scaling is not None and spec.rope_scaling.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope_scaling.factor)


Change = Callable[[gguf.GGUFWriter], None]


def write_gguf(
    path: Path,
    spec: ModelSpec = SPEC,
    tensors: dict[str, torch.Tensor] | None = None,
    change: Change | None = None,
    arch: str = "llama",
    kind: np.dtype | type = np.float32,
) -> Path:
    """`tensors` under Hugging Face names (default: the tiny llama's) as a converter writes them."""
    writer = gguf.GGUFWriter(path, arch)
    add_facts(writer, spec)
    for name, tensor in (tiny_tensors(spec) if tensors is None else tensors).items():
        array = tensor.numpy()
        if arch in PAIRED and "q_proj" in name:
            array = pairs_from_halves(array, spec.n_heads)
        elif arch in PAIRED and "k_proj" in name:
            array = pairs_from_halves(array, spec.n_kv_heads)
        if arch in FROM_ZERO and name.endswith("norm.weight"):
            array = array + 1.0
        writer.add_tensor(
            gguf_name(name, arch in FROM_ZERO),
            array.astype(kind if array.ndim == 2 else np.float32),
        )
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
