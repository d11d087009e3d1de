"""The facts of one model as a frozen value, read from a GGUF header or a Hugging Face config.

Knows no tensors and no torch: numbers only. Whatever the decoder could not honour is refused here
by name, before any weight is read. Called by `open.py`; read by everything that needs a size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...lang.errors import ModelError, UnsupportedModel

GGUF_ARCHITECTURES = ("llama",)
HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    `kind` "linear" divides every frequency by `factor`. "llama3" divides those whose wavelength is
    above `original_context / low_freq` by `factor`, leaves those below
    `original_context / high_freq` alone and blends in between.
    """

    kind: str
    factor: float
    low_freq: float = 1.0
    high_freq: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything about a llama-type model but its weights.

    `n_heads` query heads of `head_dim` share `n_kv_heads` key/value heads. `ffn` is the width of
    the gated MLP. `tied_embeddings`: the output head is the embedding matrix. `end_ids` end a
    generation; `bos_id` None where the file names none. `context_length` in tokens.
    """

    architecture: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool
    context_length: int
    end_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other."""
        if self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads:
            raise UnsupportedModel(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise UnsupportedModel(f"rotary needs an even head size, found {self.head_dim}")

    @property
    def n_parameters(self) -> int:
        """Numbers held by the weights (a tied head counts once)."""
        attention = self.hidden * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        heads = 1 if self.tied_embeddings else 2
        return self.n_layers * layer + heads * self.vocab * self.hidden + self.hidden

    @property
    def kv_width(self) -> int:
        """Numbers a token's KV takes over all layers, keys and values."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim


class _Facts:
    """Typed reading of an untyped mapping; a missing or odd value is a ModelError naming it."""

    def __init__(self, values: Mapping[str, object], origin: str) -> None:
        self.values = values
        self.origin = origin

    def get(self, key: str) -> object:
        return self.values.get(key)

    def int(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.origin}: {key} must be a whole number, found {value!r}")
        return value

    def float(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"{self.origin}: {key} must be a number, found {value!r}")
        return float(value)

    def must_be(self, key: str, allowed: Collection[object]) -> None:
        if self.values.get(key) not in allowed:
            raise UnsupportedModel(
                f"{self.origin}: {key} = {self.values[key]!r} is not supported "
                f"(supported: {', '.join(map(repr, allowed))})"
            )


def _unsupported(found: object, supported: Collection[str], origin: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{origin}: architecture {found!r} is not supported (supported: {', '.join(supported)})"
    )


def spec_from_gguf(
    metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], origin: str
) -> ModelSpec:
    """Facts from a GGUF header.

    `metadata`: scalar key/values. `shapes`: tensor name -> shape, slowest dimension first (the
    vocabulary size and whether the head is tied follow from the tensors: headers get them wrong).
    Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    arch = metadata.get("general.architecture")
    if arch not in GGUF_ARCHITECTURES:
        raise _unsupported(arch, GGUF_ARCHITECTURES, origin)
    facts = _Facts(metadata, origin)
    facts.must_be(f"{arch}.expert_count", (None, 0))
    facts.must_be(f"{arch}.attention.sliding_window", (None, 0))
    hidden, n_heads = (
        facts.int(f"{arch}.embedding_length"),
        facts.int(f"{arch}.attention.head_count"),
    )
    head_dim = facts.int(f"{arch}.attention.key_length", hidden // max(n_heads, 1))
    facts.must_be(f"{arch}.attention.value_length", (None, head_dim))
    facts.must_be(f"{arch}.rope.dimension_count", (None, head_dim))
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise ModelError(f"{origin}: no two-dimensional tensor token_embd.weight")
    ends = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelSpec(
        architecture="llama",
        n_layers=facts.int(f"{arch}.block_count"),
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=facts.int(f"{arch}.attention.head_count_kv", n_heads),
        head_dim=head_dim,
        ffn=facts.int(f"{arch}.feed_forward_length"),
        vocab=shapes["token_embd.weight"][0],
        norm_eps=facts.float(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_theta=facts.float(f"{arch}.rope.freq_base", 10000.0),
        rope_scaling=_gguf_scaling(facts, str(arch)),
        tied_embeddings="output.weight" not in shapes,
        context_length=facts.int(f"{arch}.context_length"),
        end_ids=_unique(*ends),
        bos_id=bos if isinstance(bos, int) else None,
    )


def _gguf_scaling(facts: _Facts, arch: str) -> RopeScaling | None:
    """Linear scaling stands in the header; llama3's arrives as a tensor of factors."""
    facts.must_be(f"{arch}.rope.scaling.type", (None, "none", "linear"))
    if facts.get(f"{arch}.rope.scaling.type") != "linear":
        return None
    return RopeScaling("linear", facts.float(f"{arch}.rope.scaling.factor"))


def spec_from_hf(
    config: Mapping[str, object], generation: Mapping[str, object], origin: str
) -> ModelSpec:
    """Facts from a Hugging Face `config.json` and (may be empty) `generation_config.json`."""
    names = config.get("architectures") or [None]
    arch = names[0] if isinstance(names, list) else names
    if arch not in HF_ARCHITECTURES:
        raise _unsupported(arch, HF_ARCHITECTURES, origin)
    facts = _Facts(config, origin)
    facts.must_be("hidden_act", (None, "silu"))
    facts.must_be("attention_bias", (None, False))
    facts.must_be("mlp_bias", (None, False))
    facts.must_be("quantization_config", (None,))
    context = facts.int("max_position_embeddings", 2048)
    window = facts.int("sliding_window", context)
    if window < context:
        raise UnsupportedModel(
            f"{origin}: sliding_window = {window} below the context of {context} is not supported"
        )
    hidden, n_heads = facts.int("hidden_size"), facts.int("num_attention_heads")
    theta, scaling = _hf_rope(config, facts, context, origin)
    bos = config.get("bos_token_id")
    return ModelSpec(
        architecture="llama",
        n_layers=facts.int("num_hidden_layers"),
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=facts.int("num_key_value_heads", n_heads),
        head_dim=facts.int("head_dim", hidden // max(n_heads, 1)),
        ffn=facts.int("intermediate_size"),
        vocab=facts.int("vocab_size"),
        norm_eps=facts.float("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        # transformers' own defaults where the file is silent
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        context_length=context,
        end_ids=_unique(config.get("eos_token_id"), generation.get("eos_token_id")),
        bos_id=bos if isinstance(bos, int) else None,
    )


def _hf_rope(
    config: Mapping[str, object], facts: _Facts, context: int, origin: str
) -> tuple[float, RopeScaling | None]:
    """Base and scaling: `rope_parameters` since transformers 5, two separate keys before."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"{origin}: rope parameters must be a mapping, found {given!r}")
    rope = _Facts(given, origin)
    theta = rope.float("rope_theta", facts.float("rope_theta", 10000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(
            f"{origin}: rope type {kind!r} is not supported (supported: {', '.join(ROPE_TYPES)})"
        )
    rope.must_be("partial_rotary_factor", (None, 1, 1.0))
    if kind == "linear":
        return theta, RopeScaling("linear", rope.float("factor"))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            rope.float("factor"),
            low_freq=rope.float("low_freq_factor"),
            high_freq=rope.float("high_freq_factor"),
            original_context=rope.int("original_max_position_embeddings", context),
        )
    return theta, None


def _unique(*found: object) -> tuple[int, ...]:
    """Token ids in order of appearance; an entry may be an id, a list of ids or None."""
    ids: dict[int, None] = {}
    for entry in found:
        for value in entry if isinstance(entry, (list, tuple)) else (entry,):
            if isinstance(value, int) and not isinstance(value, bool):
                ids[value] = None
    return tuple(ids)
