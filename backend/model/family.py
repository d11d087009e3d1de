"""The supported model families: what their names promise beyond the numbers in a file.

A table of values; reads no file and no tensor. `spec_hf.py`, `spec_gguf.py` and `sources.py` look
things up here; a new family is an entry here and, where its blocks differ, a fact in `spec.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    `hf`: its architecture names in a Hugging Face config; `gguf`: its name in a GGUF header.
    `hf_defaults`: config values where a config is silent, when they differ from the llama family's
    (they are those of the transformers configuration class). `paired_rows`: its GGUF files store q
    and k with the two members of a rotary pair next to each other. `norms_from_zero`: Hugging Face
    files store norm weights minus one (GGUF files never do). `gguf_pattern` n: in a GGUF file every
    n-th layer sees everything and the others slide; 0: none slides. `no_rope_step` n: in a GGUF
    file every n-th layer has no rotary; 0: all have.
    """

    name: str
    hf: tuple[str, ...]
    gguf: str
    hf_defaults: Mapping[str, object] = field(default_factory=dict)
    paired_rows: bool = False
    norms_from_zero: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    scaled_embeddings: bool = False
    activation: str = "silu"
    gguf_pattern: int = 0
    no_rope_step: int = 0


_GEMMA = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}

FAMILIES = (
    # Mistral's GGUF files call themselves llama.
    Family(name="llama", hf=("LlamaForCausalLM",), gguf="llama", paired_rows=True),
    Family(
        name="mistral",
        hf=("MistralForCausalLM",),
        gguf="",
        hf_defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
    ),
    Family(
        name="qwen2",
        hf=("Qwen2ForCausalLM",),
        gguf="qwen2",
        hf_defaults={"sliding_window": 4096, "max_position_embeddings": 32768},
        qkv_bias=True,
    ),
    Family(
        name="qwen3",
        hf=("Qwen3ForCausalLM",),
        gguf="qwen3",
        hf_defaults={"head_dim": 128, "sliding_window": 4096, "max_position_embeddings": 32768},
        qk_norm=True,
    ),
    Family(
        name="smollm3",
        hf=("SmolLM3ForCausalLM",),
        gguf="smollm3",
        hf_defaults={
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_theta": 2e6,
            "max_position_embeddings": 32768,
        },
        paired_rows=True,
        no_rope_step=4,
    ),
    Family(
        name="gemma2",
        hf=("Gemma2ForCausalLM",),
        gguf="gemma2",
        hf_defaults=_GEMMA
        | {
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window_pattern": 2,
        },
        norms_from_zero=True,
        post_norms=True,
        scaled_embeddings=True,
        activation="gelu_tanh",
        gguf_pattern=2,
    ),
    Family(
        name="gemma3",
        hf=("Gemma3ForCausalLM",),
        gguf="gemma3",
        hf_defaults=_GEMMA
        | {
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        norms_from_zero=True,
        qk_norm=True,
        post_norms=True,
        scaled_embeddings=True,
        activation="gelu_tanh",
        gguf_pattern=6,
    ),
)

BY_NAME = {family.name: family for family in FAMILIES}
BY_HF = {name: family for family in FAMILIES for name in family.hf}
BY_GGUF = {family.gguf: family for family in FAMILIES if family.gguf}
