"""A transformers LlamaForCausalLM over given tensors: the oracle for logits and tokens.

Imports transformers (seconds); `tiny.py` does not.
"""

from __future__ import annotations

import torch
from tiny import SPEC, hf_name, tiny_tensors
from transformers import LlamaConfig, LlamaForCausalLM

from branchwork.backend.model.sources import TensorSource
from branchwork.backend.model.spec import ModelSpec, RopeScaling


def hf_config(spec: ModelSpec) -> LlamaConfig:
    rope = {"rope_type": "default", "rope_theta": spec.rope_theta}
    if spec.rope_scaling is not None:
        rope |= _rope_keys(spec.rope_scaling)
    return LlamaConfig(
        hidden_size=spec.hidden,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.n_layers,
        num_attention_heads=spec.n_heads,
        num_key_value_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab,
        rms_norm_eps=spec.norm_eps,
        max_position_embeddings=spec.context_length,
        tie_word_embeddings=spec.tied_embeddings,
        rope_parameters=rope,
        eos_token_id=list(spec.end_ids) or None,
        bos_token_id=spec.bos_id,
        architectures=["LlamaForCausalLM"],
    )


def _rope_keys(scaling: RopeScaling) -> dict[str, object]:
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq,
        "high_freq_factor": scaling.high_freq,
        "original_max_position_embeddings": scaling.original_context,
    }


def hf_model(spec: ModelSpec, tensors: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """`tensors` under Hugging Face names, as `tiny_tensors` makes them; taken in as they are."""
    with torch.device("meta"):
        model = LlamaForCausalLM(hf_config(spec))
    given = dict(tensors)
    if spec.tied_embeddings:
        given["lm_head.weight"] = given["model.embed_tokens.weight"]
    missing = model.load_state_dict(given, assign=True, strict=True)
    assert not missing.missing_keys
    # The rotary table is a buffer that no checkpoint holds.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    model.generation_config.eos_token_id = list(spec.end_ids) or None
    return model.eval()


def hf_tiny(spec: ModelSpec = SPEC, seed: int = 0) -> LlamaForCausalLM:
    return hf_model(spec, tiny_tensors(spec, seed))


def hf_from_source(spec: ModelSpec, source: TensorSource) -> LlamaForCausalLM:
    """The float32 model over the very tensors our loader reads from a file."""
    tensors = {hf_name(name): source.read(name).float() for name in source.shapes()}
    return hf_model(spec, tensors)
