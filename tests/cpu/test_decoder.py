"""The decoder's logits against transformers on the same weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hf_llama import hf_tiny
from tiny import SPEC, tiny_runner, tiny_weights

from branchwork.backend.attention.interface import RowShape
from branchwork.backend.attention.reference import ReferenceAttention
from branchwork.backend.model.layers import rope_frequencies
from branchwork.backend.model.registry import build_decoder
from branchwork.backend.model.spec import ModelSpec, RopeScaling
from branchwork.backend.port import Rules
from branchwork.backend.sched.plan import Draw, Row, StepPlan
from branchwork.lang.errors import UnsupportedModel

CPU = torch.device("cpu")
LINEAR = RopeScaling("linear", 4.0)
LLAMA3 = RopeScaling("llama3", 8.0, low_freq=1.0, high_freq=4.0, original_context=64)
SPECS = {
    "tied": SPEC,
    "own head": replace(SPEC, tied_embeddings=False),
    "wide heads": replace(SPEC, head_dim=24),
    "one key/value head": replace(SPEC, n_kv_heads=1),
    "linear rope": replace(SPEC, rope_scaling=LINEAR),
    "llama3 rope": replace(SPEC, rope_scaling=LLAMA3),
}


def our_logits(
    spec: ModelSpec, tokens: list[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    decoder = build_decoder(spec, tiny_weights(spec, dtype))
    step = ReferenceAttention(16, dtype, CPU).plan([RowShape(len(tokens), 0, range(40))])
    pool = torch.empty(spec.n_layers, 2, 640, spec.n_kv_heads, spec.head_dim, dtype=dtype)
    with torch.inference_mode():
        ids = torch.tensor(tokens)
        hidden = decoder.forward(ids, torch.arange(len(tokens)), step, pool)
        return decoder.logits(hidden)


def random_tokens(n: int) -> list[int]:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, SPEC.vocab, (n,), generator=generator).tolist()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("n_tokens", [1, 30, 200])
def test_logits_equal_those_of_transformers(name: str, n_tokens: int) -> None:
    tokens = random_tokens(n_tokens)
    with torch.inference_mode():
        expected = hf_tiny(SPECS[name])(torch.tensor([tokens])).logits[0]
    ours = our_logits(SPECS[name], tokens)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_scaled_rope_differs_from_plain_rope() -> None:
    """Else the test above could pass with the scaling ignored on both sides."""
    tokens = random_tokens(200)
    plain = our_logits(SPEC, tokens)
    for name in ("linear rope", "llama3 rope"):
        assert (plain - our_logits(SPECS[name], tokens)).abs().max() > 1e-2


def test_factors_of_a_file_divide_the_rotary_frequencies() -> None:
    factors = rope_frequencies(SPEC, None) / rope_frequencies(SPECS["llama3 rope"], None)
    torch.testing.assert_close(
        rope_frequencies(SPEC, factors), rope_frequencies(SPECS["llama3 rope"], None)
    )


def test_bfloat16_logits_are_close_to_float32() -> None:
    tokens = random_tokens(50)
    exact, rough = our_logits(SPEC, tokens), our_logits(SPEC, tokens, torch.bfloat16)
    assert rough.dtype == torch.float32
    assert (exact - rough).abs().max() < 0.1 * exact.std()


def test_greedy_tokens_equal_transformers_generate() -> None:
    tokens = random_tokens(23)
    with torch.inference_mode():
        given = torch.tensor([tokens])
        model = hf_tiny()
        model.generation_config.eos_token_id = None
        expected = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
        )[0, len(tokens) :].tolist()
    runner, drawn, start, new = tiny_runner(), [], 0, tokens
    while len(drawn) < 40:
        draw = Draw(Rules(), 0, start + len(new))
        row = Row(new, start, range(63, 40, -1), draw=draw)
        token = runner.sample(runner.forward(StepPlan((row,)))).rows[0].token
        assert token is not None
        start, new = start + len(new), [token]
        drawn.append(token)
    assert drawn == expected


def test_an_unknown_architecture_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba' is not supported \(supported: llama"):
        build_decoder(replace(SPEC, architecture="mamba"), tiny_weights())
