"""Every supported family against transformers on tiny random weights, over the paged path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from hf_families import VARIANTS, tensors_of, tiny_family

from branchwork.backend.attention.interface import RowShape
from branchwork.backend.attention.reference import ReferenceAttention
from branchwork.backend.model.decoder import Decoder
from branchwork.backend.model.family import FAMILIES
from branchwork.backend.model.open import OpenModel, open_model
from branchwork.backend.model.registry import build_decoder
from branchwork.backend.model.weights import load_weights
from branchwork.backend.port import Rules
from branchwork.backend.runner.load import make_runner
from branchwork.backend.sched.plan import Draw, Row, StepPlan

CPU = torch.device("cpu")
PAGE = 4
LENGTHS = (47, 30)
"""Two sequences decoded side by side, both well beyond the windows of the tiny models."""
PREFILL = (20, 33)
"""Ends of the two prefill chunks of the first sequence; the second's are ten earlier."""


def random_tokens(n: int) -> list[int]:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, 300, (n,), generator=generator).tolist()


def decoder_of(model: OpenModel) -> Decoder:
    return build_decoder(model.spec, load_weights(model.spec, model.source, torch.float32))


def paged_logits(decoder: Decoder, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Logits of every position: two chunks of prefill, then token by token, both sequences in one
    step on interleaved pages."""
    spec = decoder.spec
    attention = ReferenceAttention(PAGE, torch.float32, CPU)
    pages = [range(i, 40, 2) for i in range(2)]
    pool = torch.full((spec.n_layers, 2, 40 * PAGE, spec.n_kv_heads, spec.head_dim), torch.nan)
    ends = [[end - 10 * i for end in PREFILL] for i in range(2)]
    for i, tokens in enumerate(sequences):
        ends[i] += range(ends[i][-1] + 1, len(tokens) + 1)
    found: list[list[torch.Tensor]] = [[], []]
    done = [0, 0]
    for step in range(max(map(len, ends))):
        live = [i for i in range(2) if step < len(ends[i])]
        new = [ends[i][step] - done[i] for i in live]
        rows = [RowShape(n, done[i], pages[i]) for i, n in zip(live, new, strict=True)]
        flat = [t for i in live for t in sequences[i][done[i] : ends[i][step]]]
        at = torch.cat([torch.arange(r.start, r.start + r.n_tokens) for r in rows])
        planned = attention.plan(rows, decoder.rules)
        hidden = decoder.forward(torch.tensor(flat), at, planned, pool)
        for i, logits in zip(live, decoder.logits(hidden).split(new), strict=True):
            found[i].append(logits)
            done[i] = ends[i][step]
    return [torch.cat(logits) for logits in found]


def worst_error(decoder: Decoder, model: torch.nn.Module) -> float:
    sequences = [random_tokens(n) for n in LENGTHS]
    with torch.inference_mode():
        expected = [model(torch.tensor([tokens])).logits[0] for tokens in sequences]
        ours = paged_logits(decoder, sequences)
    assert all(e.std() > 0.5 for e in expected), "too quiet a model to tell anything"
    return max(float((a - b).abs().max()) for a, b in zip(ours, expected, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_transformers_over_chunks_and_decode(name: str, tmp_path: Path) -> None:
    model = tiny_family(name)
    model.save_pretrained(tmp_path / "hf")
    error = worst_error(decoder_of(open_model(tmp_path / "hf")), model)
    print(f"{name} | safetensors | {error:.1e}")
    assert error < 1e-4


@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name].gguf])
def test_a_gguf_file_of_the_family_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    model, arch = tiny_family(name), VARIANTS[name].gguf
    assert arch is not None
    model.save_pretrained(tmp_path / "hf")
    spec = open_model(tmp_path / "hf").spec
    path = write_gguf(tmp_path / "tiny.gguf", spec, tensors_of(model), arch=arch)
    error = worst_error(decoder_of(open_model(path)), model)
    print(f"{name} | gguf | {error:.1e}")
    assert error < 1e-4


FACTS: dict[str, tuple[str, dict[str, object]]] = {
    "window": ("mistral, window", {"sliding_layers": ()}),
    "which layers slide": ("qwen2, window", {"sliding_layers": (0, 1, 2, 3)}),
    "layers without rotary": ("smollm3", {"plain_layers": ()}),
    "local rotary": ("gemma3", {"local_rope_theta": None}),
    "global rotary": ("gemma3", {"rope_theta": 1e4}),
    "query scale": ("gemma3, scaled", {"attn_scale": None}),
    "cap of logits": ("gemma3, scaled", {"final_softcap": None}),
    "cap of scores": ("gemma2", {"attn_softcap": None}),
    "embedding scale": ("gemma3", {"embed_scale": 1.0}),
    "activation": ("gemma3", {"activation": "silu"}),
    "yarn": ("qwen3, yarn rope", {"rope_scaling": None}),
}


@pytest.mark.parametrize("fact", FACTS)
def test_each_fact_of_a_family_is_read_and_matters(fact: str, tmp_path: Path) -> None:
    """Else the comparison above could pass with a feature ignored on both sides."""
    name, changes = FACTS[fact]
    model = tiny_family(name)
    model.save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    weights = load_weights(opened.spec, opened.source, torch.float32)
    assert worst_error(build_decoder(replace(opened.spec, **changes), weights), model) > 1e-2


def greedy(decoder: Decoder, prompt: list[int], n: int) -> list[int]:
    runner = make_runner(decoder.spec, decoder.weights, n_pages=32, page_size=PAGE)
    drawn, start, new = [], 0, prompt
    while len(drawn) < n:
        draw = Draw(Rules(), 0, start + len(new))
        plan = StepPlan((Row(new, start, range(32), draw=draw),))
        token = runner.sample(runner.forward(plan)).rows[0].token
        assert token is not None
        start, new = start + len(new), [token]
        drawn.append(token)
    return drawn


@pytest.mark.parametrize("name", ["llama", "llama, tied head", "smollm3"])
def test_both_formats_generate_what_transformers_generates(name: str, tmp_path: Path) -> None:
    """Fewer key/value heads than query heads, an explicit head size, with and without a head of its
    own: a wrong row order of q or k shows up here."""
    model, arch = tiny_family(name), VARIANTS[name].gguf
    assert arch is not None
    model.save_pretrained(tmp_path / "hf")
    folder = open_model(tmp_path / "hf")
    path = write_gguf(tmp_path / "tiny.gguf", folder.spec, tensors_of(model), arch=arch)
    prompt = random_tokens(12)
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=32, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
    assert len(set(expected)) > 8, "too monotonous to tell anything"
    for opened in (folder, open_model(path)):
        assert greedy(decoder_of(opened), prompt, 32) == expected


def test_every_family_is_among_the_variants() -> None:
    assert {name.partition(",")[0] for name in VARIANTS} == {family.name for family in FAMILIES}
