"""A tiny random transformers model of every supported family: the oracle for its logits.

Imports transformers (seconds).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)


@dataclass(frozen=True)
class Variant:
    """A family's configuration class, what differs from `BASE`, and its GGUF name if it has one."""

    config: type[PretrainedConfig]
    changes: dict[str, object] = field(default_factory=dict)
    gguf: str | None = None


BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 9}
GEMMA = {"sliding_window": 9, "query_pre_attn_scalar": 16}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}

VARIANTS = {
    "llama": Variant(LlamaConfig, gguf="llama"),
    "llama, own head": Variant(LlamaConfig, {"num_key_value_heads": 1}, gguf="llama"),
    "llama, tied head": Variant(LlamaConfig, {"tie_word_embeddings": True}, gguf="llama"),
    "llama, linear rope": Variant(LlamaConfig, {"rope_parameters": LINEAR}, gguf="llama"),
    "llama, llama3 rope": Variant(LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama, yarn rope": Variant(LlamaConfig, {"rope_parameters": YARN}),
    "llama, biases": Variant(LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral, window": Variant(MistralConfig, {"sliding_window": 9}),
    "mistral, no window": Variant(MistralConfig, {"sliding_window": None}, gguf="llama"),
    "qwen2": Variant(Qwen2Config, gguf="qwen2"),
    "qwen2, window": Variant(Qwen2Config, {**SLIDING, "max_window_layers": 1}),
    "qwen3": Variant(Qwen3Config, {"tie_word_embeddings": True}, gguf="qwen3"),
    "qwen3, yarn rope": Variant(Qwen3Config, {"rope_parameters": YARN, "head_dim": 24}),
    "smollm3": Variant(SmolLM3Config, gguf="smollm3"),
    "smollm3, window": Variant(
        SmolLM3Config, {**SLIDING, "no_rope_layers": [1, 0, 1, 0], "tie_word_embeddings": False}
    ),
    "gemma2": Variant(
        Gemma2Config,
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        gguf="gemma2",
    ),
    "gemma3": Variant(Gemma3TextConfig, {**GEMMA, "num_hidden_layers": 7}, gguf="gemma3"),
    "gemma3, scaled": Variant(
        Gemma3TextConfig,
        {
            "sliding_window": 20,
            "query_pre_attn_scalar": 40,
            "final_logit_softcapping": 3.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": LOCAL},
        },
    ),
}


def tiny_family(name: str, seed: int = 0) -> PreTrainedModel:
    """The variant with random weights, loud enough that tokens differ; float32, on eager
    attention (the only one that honours soft caps)."""
    variant = VARIANTS[name]
    config = variant.config(**{**BASE, **variant.changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                noise *= 0.15
            elif key.endswith("norm.weight") and "gemma" not in name:
                noise = 1.0 + 0.1 * noise
            else:
                noise *= 0.3
            parameter.copy_(noise)
    model.generation_config.eos_token_id = None
    return model.eval()


def tensors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights under Hugging Face names, a tied head left out."""
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return {name: tensor.clone() for name, tensor in state.items()}
