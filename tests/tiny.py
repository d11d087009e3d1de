"""A tiny random llama, made in milliseconds: 2 layers, 64 wide, 4 query heads on 2 key/value heads.

Its tensors exist once, under Hugging Face names, so that every way to load them can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from branchwork.backend.model.sources import HfSource
from branchwork.backend.model.spec import ModelSpec
from branchwork.backend.model.weights import Weights, expected_shapes, load_weights
from branchwork.backend.runner.load import make_runner
from branchwork.backend.runner.runner import Runner

SPEC = ModelSpec(
    architecture="llama",
    n_layers=2,
    hidden=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    ffn=96,
    vocab=300,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tied_embeddings=True,
    context_length=512,
    end_ids=(2,),
    bos_id=1,
)

HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}


def tiny_tensors(spec: ModelSpec = SPEC, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 tensors under Hugging Face names, loud enough that tokens differ."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(spec).items():
        tensor = torch.randn(shape, generator=generator)
        tensor = tensor * 0.15 if len(shape) == 2 else 1.0 + 0.1 * tensor
        tensors[hf_name(name)] = tensor
    return tensors


def hf_name(canonical: str) -> str:
    """`layers.0.q` -> `model.layers.0.self_attn.q_proj.weight`."""
    prefix, _, kind = canonical.rpartition(".")
    return f"model.{prefix}.{HF_NAMES[kind]}" if prefix else HF_NAMES[kind]


@dataclass(frozen=True)
class MemoryFolder:
    """Stands in for `HfFolder`: the same tensors without a disk."""

    tensors: dict[str, torch.Tensor]
    path: str = "tiny"

    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def tiny_weights(
    spec: ModelSpec = SPEC, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Weights:
    source = HfSource(MemoryFolder(tiny_tensors(spec, seed)), spec)
    return load_weights(spec, source, dtype)


def tiny_runner(
    n_pages: int = 64,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    spec: ModelSpec = SPEC,
) -> Runner:
    """A runner over the tiny model; every call has fresh KV and the same weights."""
    return make_runner(spec, tiny_weights(spec, dtype), n_pages, page_size)
