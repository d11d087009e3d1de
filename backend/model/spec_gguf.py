"""A GGUF header becomes a `ModelSpec`.

What a header leaves to the family (which layers slide, which have no rotary) is in `family.py`;
what we lack is refused by name. Knows no tensor data. Called by `open.py`. Key names:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...lang.errors import ModelError
from .facts import Facts, one_id, unique_ids, unsupported
from .family import BY_GGUF, Family
from .spec import ModelSpec, RopeScaling

_HIDDEN_SCALED = {("gemma2", 46), ("gemma3", 62)}
"""The 27B models scale scores by the hidden size a head; no header says so, their depth does."""


def spec_from_gguf(
    metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], origin: str
) -> ModelSpec:
    """Facts from a GGUF header.

    `metadata`: scalar key/values. `shapes`: tensor name -> shape, slowest dimension first (the
    vocabulary size and whether the head is tied follow from the tensors: headers get them wrong).
    """
    arch = metadata.get("general.architecture")
    if arch not in BY_GGUF:
        raise unsupported(arch, BY_GGUF, origin)
    family = BY_GGUF[str(arch)]
    facts = Facts(metadata, origin, prefix=f"{arch}.")
    n_layers, hidden = facts.whole("block_count"), facts.whole("embedding_length")
    n_heads = facts.whole("attention.head_count")
    head_dim = facts.whole("attention.key_length", hidden // max(n_heads, 1))
    _refuse(facts, family, head_dim)
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise ModelError(f"{origin}: no two-dimensional tensor token_embd.weight")
    theta = facts.number("rope.freq_base", 10000.0)
    window, sliding = _sliding(facts, family, n_layers)
    by_hidden = (family.name, n_layers) in _HIDDEN_SCALED
    return ModelSpec(
        architecture=family.name,
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=facts.whole("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        ffn=facts.whole("feed_forward_length"),
        vocab=shapes["token_embd.weight"][0],
        norm_eps=facts.number("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=_scaling(facts),
        tied_embeddings="output.weight" not in shapes,
        context_length=facts.whole("context_length"),
        end_ids=unique_ids(
            *(metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
        ),
        bos_id=one_id(metadata.get("tokenizer.ggml.bos_token_id")),
        window=window,
        sliding_layers=sliding,
        local_rope_theta=_local_theta(facts, family) if sliding else None,
        plain_layers=_every(family.no_rope_step, n_layers),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        activation=family.activation,
        embed_scale=math.sqrt(hidden) if family.scaled_embeddings else 1.0,
        attn_scale=(hidden / n_heads) ** -0.5 if by_hidden else None,
        attn_softcap=facts.positive("attn_logit_softcapping"),
        final_softcap=facts.positive("final_logit_softcapping"),
    )


def _refuse(facts: Facts, family: Family, head_dim: int) -> None:
    facts.must_be("expert_count", (None, 0))
    if not family.gguf_pattern:
        facts.must_be("attention.sliding_window", (None, 0))
    facts.must_be("attention.value_length", (None, head_dim))
    facts.must_be("rope.dimension_count", (None, head_dim))
    if family.name == "gemma3":
        facts.must_be("attn_logit_softcapping", (None, 0))


def _sliding(facts: Facts, family: Family, n_layers: int) -> tuple[int | None, tuple[int, ...]]:
    window = facts.whole("attention.sliding_window", 0)
    if window == 0:
        return None, ()
    full = _every(facts.whole("attention.sliding_window_pattern", family.gguf_pattern), n_layers)
    sliding = tuple(layer for layer in range(n_layers) if layer not in full)
    return (window, sliding) if sliding else (None, ())


def _every(step: int, n_layers: int) -> tuple[int, ...]:
    """Every `step`-th layer, counted from one; none for 0."""
    return tuple(range(step - 1, n_layers, step)) if step > 0 else ()


def _local_theta(facts: Facts, family: Family) -> float | None:
    if family.name != "gemma3":
        return None
    return facts.number("rope.freq_base_swa", 10000.0)


def _scaling(facts: Facts) -> RopeScaling | None:
    """Linear scaling stands in the header; llama3's arrives as a tensor of factors."""
    facts.must_be("rope.scaling.type", (None, "none", "linear"))
    if facts.get("rope.scaling.type") != "linear":
        return None
    return RopeScaling("linear", facts.number("rope.scaling.factor"))
