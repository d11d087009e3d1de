"""A Hugging Face config becomes a `ModelSpec`.

Where a config is silent, the defaults of the transformers configuration class hold; where it asks
for what we lack, it is refused by name. Knows no tensors. Called by `open.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ...lang.errors import ModelError, UnsupportedModel
from .facts import Facts, one_id, unique_ids, unsupported
from .family import BY_HF, Family
from .spec import ModelSpec, RopeScaling

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_SLIDING, _FULL = "sliding_attention", "full_attention"


def spec_from_hf(
    config: Mapping[str, object], generation: Mapping[str, object], origin: str
) -> ModelSpec:
    """Facts from a `config.json` and (may be empty) `generation_config.json`."""
    names = config.get("architectures") or [None]
    arch = names[0] if isinstance(names, list) else names
    if arch not in BY_HF:
        raise unsupported(arch, BY_HF, origin)
    family = BY_HF[str(arch)]
    facts = Facts({**family.hf_defaults, **config}, origin)
    _refuse(facts, family)
    n_layers = facts.whole("num_hidden_layers")
    hidden, n_heads = facts.whole("hidden_size"), facts.whole("num_attention_heads")
    head_dim = facts.whole("head_dim", hidden // max(n_heads, 1))
    plain = _plain_layers(facts, n_layers) if family.name == "smollm3" else ()
    window, sliding = _sliding(facts, family, n_layers, plain)
    theta, scaling, local = _rope(facts, family)
    bias = bool(facts.get("attention_bias"))
    scalar = facts.positive("query_pre_attn_scalar")
    return ModelSpec(
        architecture=family.name,
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=facts.whole("num_key_value_heads", n_heads),
        head_dim=head_dim,
        ffn=facts.whole("intermediate_size"),
        vocab=facts.whole("vocab_size"),
        norm_eps=facts.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=bool(facts.get("tie_word_embeddings")),
        context_length=facts.whole("max_position_embeddings", 2048),
        end_ids=unique_ids(config.get("eos_token_id"), generation.get("eos_token_id")),
        bos_id=one_id(config.get("bos_token_id")),
        window=window,
        sliding_layers=sliding,
        local_rope_theta=local if sliding else None,
        plain_layers=plain,
        qkv_bias=family.qkv_bias or bias,
        o_bias=bias,
        mlp_bias=bool(facts.get("mlp_bias")),
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        activation=family.activation,
        embed_scale=math.sqrt(hidden) if family.scaled_embeddings else 1.0,
        attn_scale=None if scalar in (None, head_dim) else scalar**-0.5,
        attn_softcap=facts.positive("attn_logit_softcapping"),
        final_softcap=facts.positive("final_logit_softcapping"),
    )


def _refuse(facts: Facts, family: Family) -> None:
    """What a config may ask for and the decoder lacks."""
    allowed = [name for name, ours in _ACTIVATIONS.items() if ours == family.activation]
    key = "hidden_activation" if "hidden_activation" in family.hf_defaults else "hidden_act"
    facts.must_be(key, (None, *allowed))
    facts.must_be("quantization_config", (None,))
    facts.must_be("use_bidirectional_attention", (None, False))
    if family.name in ("mistral", "qwen2"):  # transformers ignores these there
        facts.must_be("attention_bias", (None, False))
    if family.name == "gemma3":  # transformers ignores it: nothing to compare with
        facts.must_be("attn_logit_softcapping", (None, 0))
    if family.name not in ("llama", "smollm3"):
        facts.must_be("mlp_bias", (None, False))


def _plain_layers(facts: Facts, n_layers: int) -> tuple[int, ...]:
    """SmolLM3: layers without rotary are 0 in a list, or every n-th."""
    flags = facts.get("no_rope_layers")
    if flags is None:
        step = facts.whole("no_rope_layer_interval", 4)
        flags = [(layer + 1) % max(step, 1) for layer in range(n_layers)]
    if not isinstance(flags, list) or len(flags) != n_layers:
        raise ModelError(f"{facts.origin}: no_rope_layers must hold {n_layers} numbers")
    return tuple(layer for layer, flag in enumerate(flags) if not flag)


def _sliding(
    facts: Facts, family: Family, n_layers: int, plain: tuple[int, ...]
) -> tuple[int | None, tuple[int, ...]]:
    """The window and the layers that have it; a window as wide as the context is none."""
    rules: dict[str, Callable[[int], bool]] = {
        "mistral": lambda layer: True,
        "qwen2": lambda layer: layer >= facts.whole("max_window_layers", 28),
        "qwen3": lambda layer: layer >= facts.whole("max_window_layers", 28),
        "smollm3": lambda layer: layer in plain,
        "gemma2": lambda layer: (layer + 1) % facts.whole("sliding_window_pattern") != 0,
        "gemma3": lambda layer: (layer + 1) % facts.whole("sliding_window_pattern") != 0,
    }
    window = facts.whole("sliding_window", 0)
    switched = family.name in ("qwen2", "qwen3", "smollm3")
    off = switched and not facts.get("use_sliding_window")
    if family.name not in rules or off or window == 0:
        return None, ()
    # Gemma's sliding layers turn by a base of their own, however much they see.
    own_base = family.name == "gemma3"
    if window >= facts.whole("max_position_embeddings", 2048) and not own_base:
        return None, ()
    types = facts.get("layer_types") if family.name != "mistral" else None
    if types is None:
        sliding = tuple(layer for layer in range(n_layers) if rules[family.name](layer))
    elif isinstance(types, list) and len(types) == n_layers and {*types} <= {_SLIDING, _FULL}:
        sliding = tuple(layer for layer, kind in enumerate(types) if kind == _SLIDING)
    else:
        raise UnsupportedModel(
            f"{facts.origin}: layer_types must name {_SLIDING} or {_FULL} for each of "
            f"{n_layers} layers, found {types!r}"
        )
    return (window, sliding) if sliding else (None, ())


def _rope(facts: Facts, family: Family) -> tuple[float, RopeScaling | None, float | None]:
    """Base, scaling, base of sliding layers.

    `rope_parameters` since transformers 5 (for Gemma 3 one a kind of layer), separate keys before.
    """
    given = facts.get("rope_parameters") or facts.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"{facts.origin}: rope parameters must be a mapping, found {given!r}")
    local = None
    if family.name == "gemma3":
        near = given.get(_SLIDING) or {}
        given = given.get(_FULL, {} if _SLIDING in given else given)
        sliding = Facts(near, facts.origin)
        sliding.must_be("rope_type", (None, "default"))
        local = sliding.number("rope_theta", facts.number("rope_local_base_freq"))
    rope = Facts(given or {}, facts.origin)
    theta = rope.number("rope_theta", facts.number("rope_theta", 10000.0))
    return theta, _scaling(rope, facts.whole("max_position_embeddings", 2048)), local


def _scaling(rope: Facts, context: int) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(
            f"{rope.origin}: rope type {kind!r} is not supported "
            f"(supported: {', '.join(ROPE_TYPES)})"
        )
    rope.must_be("partial_rotary_factor", (None, 1, 1.0))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    original = rope.whole("original_max_position_embeddings", context)
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            rope.number("factor"),
            low_freq=rope.number("low_freq_factor"),
            high_freq=rope.number("high_freq_factor"),
            original_context=original,
        )
    rope.must_be("mscale", (None, 0))
    rope.must_be("mscale_all_dim", (None, 0))
    factor = rope.number("factor", context / original)
    return RopeScaling(
        "yarn",
        factor,
        low_freq=rope.positive("beta_slow") or 1.0,
        high_freq=rope.positive("beta_fast") or 32.0,
        original_context=original,
        magnitude=rope.number("attention_factor", 1.0 + 0.1 * math.log(max(factor, 1.0))),
        round_range=rope.get("truncate") is not False,
    )
