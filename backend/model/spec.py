"""The facts of one model as a frozen value.

Knows no tensors, no files and no torch: numbers only. Made by `spec_hf.py` and `spec_gguf.py`,
which refuse by name whatever the decoder could not honour; read by everything that needs a size.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...lang.errors import UnsupportedModel

ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    `kind` "linear" divides every frequency by `factor`. "llama3" divides those that turn fewer than
    `low_freq` times within `original_context` by `factor`, leaves those that turn more than
    `high_freq` times alone and blends in between. "yarn" blends likewise, but linearly in the index
    of the frequency between where those two turn counts fall (rounded outwards with `round_range`),
    and multiplies cosines and sines by `magnitude` (https://arxiv.org/abs/2309.00071).
    """

    kind: str
    factor: float
    low_freq: float = 1.0
    high_freq: float = 4.0
    original_context: int = 8192
    magnitude: float = 1.0
    round_range: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything about a decoder but its weights.

    `n_heads` query heads of `head_dim` share `n_kv_heads` key/value heads. `ffn` is the width of
    the gated MLP. `tied_embeddings`: the output head is the embedding matrix. `end_ids` end a
    generation; `bos_id` None where the file names none. `context_length` in tokens.

    The rest defaults to the llama family. `sliding_layers` see only the last `window` positions,
    their own included, and where `local_rope_theta` is given turn by that base, unscaled.
    `plain_layers` have no rotary at all. `qk_norm`: every query and key head is normed before its
    rotary. `post_norms`: what attention and MLP give is normed once more before it is added.
    `embed_scale` multiplies embeddings; `attn_scale` scores (None: 1 / sqrt(head_dim)); the caps c
    turn a score or a logit s into c * tanh(s / c).
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
    window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    local_rope_theta: float | None = None
    plain_layers: tuple[int, ...] = ()
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    embed_scale: float = 1.0
    attn_scale: float | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other."""
        if self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads:
            raise UnsupportedModel(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise UnsupportedModel(f"rotary needs an even head size, found {self.head_dim}")
        if self.window is not None and self.window < 1:
            raise UnsupportedModel(f"a sliding window needs a position, found {self.window}")
        assert self.activation in ACTIVATIONS, "an activation the decoder lacks"
        assert not self.sliding_layers or self.window is not None, "layers slide without a window"

    @property
    def n_parameters(self) -> int:
        """Numbers held by the weights (a tied head counts once)."""
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        layer = 2 * self.hidden * (q + kv) + 3 * self.hidden * self.ffn + 2 * self.hidden
        layer += self.qkv_bias * (q + 2 * kv) + self.o_bias * self.hidden
        layer += self.mlp_bias * (2 * self.ffn + self.hidden)
        # The decoder holds one q/k norm a head.
        layer += self.qk_norm * (q + kv) + self.post_norms * 2 * self.hidden
        heads = 1 if self.tied_embeddings else 2
        return self.n_layers * layer + heads * self.vocab * self.hidden + self.hidden

    @property
    def kv_width(self) -> int:
        """Numbers a token's KV takes over all layers, keys and values."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim
