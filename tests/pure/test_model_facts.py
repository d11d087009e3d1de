"""Configs as they are published, old keys and new, become the same facts; no tensors, no torch."""

from __future__ import annotations

import math

import pytest

from branchwork.backend.model.spec import ModelSpec, RopeScaling
from branchwork.backend.model.spec_gguf import spec_from_gguf
from branchwork.backend.model.spec_hf import spec_from_hf
from branchwork.lang.errors import ModelError, UnsupportedModel

SIZES: dict[str, object] = {
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 1000,
}
HEADER: dict[str, object] = {
    "context_length": 32768,
    "embedding_length": 640,
    "block_count": 12,
    "feed_forward_length": 2048,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def hf(architecture: str, **config: object) -> ModelSpec:
    return spec_from_hf({**SIZES, "architectures": [architecture], **config}, {}, "test")


def gguf(architecture: str, **changes: object) -> ModelSpec:
    header = {f"{architecture}.{key}": value for key, value in {**HEADER, **changes}.items()}
    header["general.architecture"] = architecture
    return spec_from_gguf(header, {"token_embd.weight": (1000, 640)}, "test")


def test_gemma_3_reads_old_keys_and_new_ones_alike() -> None:
    sliding = "sliding_attention"
    types = [sliding if (i + 1) % 6 else "full_attention" for i in range(12)]
    old = hf(
        "Gemma3ForCausalLM",
        sliding_window=512,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=6,
    )
    new = hf(
        "Gemma3ForCausalLM",
        sliding_window=512,
        layer_types=types,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            sliding: {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    assert old == new
    assert old.rope_scaling == RopeScaling("linear", 8.0) and old.local_rope_theta == 1e4
    assert old.sliding_layers == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    assert old.head_dim == 256 and old.tied_embeddings  # not in the config: the family's own
    assert old.embed_scale == math.sqrt(640) and old.attn_scale is None


def test_gemma_3_is_the_same_from_a_gguf_header() -> None:
    changes = {
        "attention.key_length": 256,
        "attention.sliding_window": 512,
        "rope.freq_base": 1e6,
    }
    folder = hf("Gemma3ForCausalLM", sliding_window=512, max_position_embeddings=32768)
    assert gguf("gemma3", **changes) == folder


def test_the_largest_gemmas_scale_scores_by_the_hidden_size() -> None:
    spec = gguf("gemma3", **{"block_count": 62, "attention.key_length": 128})
    assert spec.attn_scale == pytest.approx((640 / 4) ** -0.5)


@pytest.mark.parametrize("switch", [{}, {"use_sliding_window": False}])
def test_a_window_that_is_not_switched_on_is_none(switch: dict[str, object]) -> None:
    """Qwen2.5 publishes a window and switches it off."""
    spec = hf("Qwen2ForCausalLM", sliding_window=64, max_window_layers=2, **switch)
    assert spec.window is None and spec.sliding_layers == ()
    assert spec.qkv_bias and not spec.o_bias


def test_a_switched_window_is_that_of_the_upper_layers() -> None:
    given = {"sliding_window": 64, "max_window_layers": 10, "use_sliding_window": True}
    spec = hf("Qwen2ForCausalLM", **given)
    assert (spec.window, spec.sliding_layers) == (64, (10, 11))


def test_smollm3_drops_rotary_in_every_fourth_layer_or_where_it_says() -> None:
    assert hf("SmolLM3ForCausalLM").plain_layers == (3, 7, 11)
    assert gguf("smollm3").plain_layers == (3, 7, 11)
    assert hf("SmolLM3ForCausalLM", no_rope_layers=[1] * 11 + [0]).plain_layers == (11,)
    with pytest.raises(ModelError, match="must hold 12 numbers"):
        hf("SmolLM3ForCausalLM", no_rope_layers=[1, 0])


def test_mistral_without_a_word_on_its_window_has_the_family_s() -> None:
    assert hf("MistralForCausalLM").window == 4096
    assert hf("MistralForCausalLM", sliding_window=None).window is None


def test_an_unsupported_architecture_is_refused_with_all_supported_ones() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        hf("GemmaForCausalLM")
    assert str(caught.value) == (
        "test: architecture 'GemmaForCausalLM' is not supported (supported: LlamaForCausalLM, "
        "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SmolLM3ForCausalLM, "
        "Gemma2ForCausalLM, Gemma3ForCausalLM)"
    )


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "bidirectional_attention"),
        ("Gemma2ForCausalLM", {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        ("Qwen3ForCausalLM", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("Qwen3ForCausalLM", {"mlp_bias": True}, "mlp_bias = True"),
        (
            "Gemma3ForCausalLM",
            {"layer_types": ["chunked_attention"] * 12},
            "layer_types must name sliding_attention or full_attention",
        ),
    ],
)
def test_what_the_decoder_lacks_is_refused_by_name(
    architecture: str, config: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        hf(architecture, **config)
