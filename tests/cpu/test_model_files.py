"""Model files: every format gives the same weights, and what is odd is refused by name."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import Change, write_gguf
from hf_llama import hf_config, hf_tiny
from safetensors.torch import save_file
from tiny import SPEC, tiny_tensors, tiny_weights

from branchwork.backend.model import gguf_file
from branchwork.backend.model.gguf_file import GgufFile
from branchwork.backend.model.open import open_model
from branchwork.backend.model.spec import ModelSpec, RopeScaling
from branchwork.backend.model.weights import Weights, load_weights
from branchwork.lang.errors import ModelError, UnknownModel, UnsupportedModel

OWN_HEAD = replace(SPEC, tied_embeddings=False)
LLAMA3 = RopeScaling("llama3", 8.0, low_freq=1.0, high_freq=4.0, original_context=64)


def write_hf(folder: Path, spec: ModelSpec = SPEC, config: dict[str, object] | None = None) -> Path:
    """A folder by hand, with changes to the config."""
    folder.mkdir()
    facts = hf_config(spec).to_dict() | (config or {})
    (folder / "config.json").write_text(json.dumps(facts))
    save_file(tiny_tensors(spec), folder / "model.safetensors")
    return folder


def loaded(path: Path, dtype: torch.dtype = torch.float32) -> tuple[ModelSpec, Weights]:
    model = open_model(path)
    return model.spec, load_weights(model.spec, model.source, dtype)


def flat(weights: Weights) -> list[torch.Tensor]:
    out = [weights.embed, weights.final_norm, weights.lm_head]
    for layer in weights.layers:
        out += [layer.attn_norm, layer.qkv, layer.o, layer.ffn_norm, layer.gate_up, layer.down]
    return out


def assert_same(ours: Weights, expected: Weights) -> None:
    for a, b in zip(flat(ours), flat(expected), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shard_size", ["1GB", "40KB"])
@pytest.mark.parametrize("spec", [SPEC, OWN_HEAD, replace(SPEC, rope_scaling=LLAMA3)])
def test_a_saved_transformers_model_loads_exactly(
    tmp_path: Path, spec: ModelSpec, shard_size: str
) -> None:
    hf_tiny(spec).save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "40KB")
    found, weights = loaded(tmp_path)
    assert found == spec
    assert_same(weights, tiny_weights(spec))
    assert (weights.lm_head is weights.embed) == spec.tied_embeddings


@pytest.mark.parametrize("spec", [SPEC, OWN_HEAD, replace(SPEC, head_dim=24, n_kv_heads=1)])
def test_a_gguf_file_gives_the_safetensors_weights_exactly(tmp_path: Path, spec: ModelSpec) -> None:
    """Fewer key/value heads than query heads: each matrix is un-permuted with its own count."""
    found, weights = loaded(write_gguf(tmp_path / "tiny.gguf", spec))
    assert replace(found, norm_eps=spec.norm_eps) == spec
    assert found.norm_eps == pytest.approx(spec.norm_eps)  # the header holds float32
    assert_same(weights, tiny_weights(spec))


def test_half_precision_gguf_tensors_are_widened(tmp_path: Path) -> None:
    _, weights = loaded(write_gguf(tmp_path / "tiny.gguf", kind=np.float16))
    expected = tiny_weights()
    assert torch.equal(weights.embed, expected.embed.half().float())


def test_quantised_gguf_tensors_come_out_as_the_package_dequantises_them(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    embed = np.random.default_rng(0).standard_normal((SPEC.vocab, SPEC.hidden), dtype=np.float32)
    packed = gguf.quantize(embed, kind)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)

    rest = {k: v for k, v in tiny_tensors().items() if "embed" not in k}
    found, weights = loaded(write_gguf(tmp_path / "tiny.gguf", tensors=rest, change=add))
    assert found.vocab == SPEC.vocab
    assert np.array_equal(weights.embed.numpy(), gguf.dequantize(packed, kind))


def q4_k_value(block: np.ndarray, i: int) -> float:
    """Number i of one 256-number Q4_K block of 144 bytes, spelled out from the format: half
    precision d and dmin, eight 6-bit scales and minimums in 12 bytes, then 4-bit numbers, those of
    64 positions in 32 bytes, low halves first. https://github.com/ggml-org/llama.cpp/pull/1684"""
    d, dmin = (float(x) for x in block[:4].view(np.float16))
    packed, group = block[4:16].astype(int), i // 32
    if group < 4:
        scale, low = packed[group] & 63, packed[group + 4] & 63
    else:
        scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
        low = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
    byte = int(block[16 + i // 64 * 32 + i % 32])
    return d * scale * (byte >> 4 if group % 2 else byte & 15) - dmin * low


def test_k_quants_of_a_gguf_are_read_by_their_format(tmp_path: Path) -> None:
    spec = replace(SPEC, hidden=256)
    name, kind = "model.layers.1.mlp.up_proj.weight", gguf.GGMLQuantizationType.Q4_K
    packed = np.random.default_rng(0).integers(0, 256, (spec.ffn, 144), dtype=np.uint8)
    packed[:, :4] = np.array([0.01, 0.02], dtype=np.float16).view(np.uint8)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.1.ffn_up.weight", packed, raw_dtype=kind)

    rest = {k: v for k, v in tiny_tensors(spec).items() if k != name}
    _, weights = loaded(write_gguf(tmp_path / "tiny.gguf", spec, tensors=rest, change=add))
    up = weights.layers[1].gate_up[spec.ffn :]
    expected = [[q4_k_value(row, i) for i in range(256)] for row in packed]
    torch.testing.assert_close(
        up, torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["Q3_K", "Q5_K", "Q6_K"])
def test_other_k_quants_come_out_as_the_package_dequantises_them(tmp_path: Path, kind: str) -> None:
    spec, quant = replace(SPEC, hidden=256), gguf.GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[quant][1]
    packed = np.random.default_rng(0).integers(0, 60, (spec.ffn, size), dtype=np.uint8)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.ffn_gate.weight", packed, raw_dtype=quant)

    rest = {k: v for k, v in tiny_tensors(spec).items() if "0.mlp.gate" not in k}
    _, weights = loaded(write_gguf(tmp_path / "tiny.gguf", spec, tensors=rest, change=add))
    gate = weights.layers[0].gate_up[: spec.ffn].numpy()
    assert np.isfinite(gate).all() and gate.any()
    assert np.array_equal(gate, gguf.dequantize(packed, quant))


def test_bfloat16_weights_are_the_rounded_ones(tmp_path: Path) -> None:
    _, weights = loaded(write_gguf(tmp_path / "tiny.gguf"), torch.bfloat16)
    assert_same(weights, tiny_weights(dtype=torch.bfloat16))


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    model = open_model(write_gguf(tmp_path / "tiny.gguf"))
    calls: list[tuple[int, int, str]] = []
    load_weights(model.spec, model.source, torch.float32, lambda *call: calls.append(call))
    total = len(tiny_tensors())
    assert [done for done, _, _ in calls] == list(range(1, total + 1))
    assert {of for _, of, _ in calls} == {total}
    assert calls[0][2] == "embed"


def test_the_header_is_parsed_once_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, index_dir = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "index"
    first = GgufFile(path, index_dir).index
    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "_read_header", lambda _: pytest.fail("parsed again"))
        assert GgufFile(path, index_dir).index == first
    assert len(list(index_dir.iterdir())) == 1

    os.utime(path, ns=(1, 1))  # another file, as far as anyone can tell
    read = gguf_file._read_header
    seen: list[Path] = []
    monkeypatch.setattr(gguf_file, "_read_header", lambda p: (seen.append(p), read(p))[1])
    assert GgufFile(path, index_dir).index == first
    assert seen == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stamp": 1}'])
def test_a_broken_index_is_built_anew(tmp_path: Path, text: str) -> None:
    path, index_dir = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "index"
    first = GgufFile(path, index_dir).index
    (stored,) = index_dir.iterdir()
    stored.write_text(text)
    assert GgufFile(path, index_dir).index == first
    assert json.loads(stored.read_text())["tensors"]


def test_an_index_folder_that_cannot_be_made_is_no_obstacle(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    assert GgufFile(path, tmp_path / "file" / "index").index.tensors


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    open_model(path, tmp_path / "index")
    (stored,) = (tmp_path / "index").iterdir()
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 64):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"tiny\.gguf"):
            open_model(path)
        # Also where a stale index claims to fit.
        index = json.loads(stored.read_text())
        stat = path.stat()
        index["stamp"][1:] = [stat.st_size, stat.st_mtime_ns]
        stored.write_text(json.dumps(index))
        with pytest.raises(ModelError, match="cut off"):
            open_model(path, tmp_path / "index")


def test_nothing_at_the_path_is_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="nowhere"):
        open_model(tmp_path / "nowhere.gguf")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=r"expected a \.gguf file"):
        open_model(tmp_path / "model.bin")


def test_another_gguf_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", arch="mamba")
    listed = "llama, qwen2, qwen3, smollm3, gemma2, gemma3"
    with pytest.raises(UnsupportedModel, match=rf"'mamba' is not supported \(supported: {listed}"):
        open_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_expert_count(4), "llama.expert_count = 4"),
        (lambda w: w.add_sliding_window(128), "sliding_window = 128"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "scaling.type = 'yarn'"),
    ],
)
def test_gguf_features_we_lack_are_refused(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        open_model(write_gguf(tmp_path / "tiny.gguf", change=change))


def test_linear_scaling_and_factors_of_a_gguf_are_read(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
        writer.add_tensor("rope_freqs.weight", np.full(8, 2.0, dtype=np.float32))

    spec, weights = loaded(write_gguf(tmp_path / "tiny.gguf", change=change))
    assert spec.rope_scaling == RopeScaling("linear", 4.0)
    assert weights.rope_factors is not None and weights.rope_factors.tolist() == [2.0] * 8


def without(name: str) -> dict[str, torch.Tensor]:
    return {k: v for k, v in tiny_tensors().items() if k != name}


def test_missing_and_odd_tensors_are_named_with_their_shapes(tmp_path: Path) -> None:
    down = "model.layers.1.mlp.down_proj.weight"
    path = write_gguf(tmp_path / "a.gguf", tensors=without(down))
    with pytest.raises(ModelError, match=r"layers\.1\.down \(64, 96\) is missing"):
        loaded(path)
    path = write_gguf(tmp_path / "b.gguf", tensors=tiny_tensors() | {down: torch.zeros(64, 95)})
    with pytest.raises(ModelError, match=r"must have shape \(64, 96\), found \(64, 95\)"):
        loaded(path)
    bias = {"change": lambda w: w.add_tensor("blk.0.attn_q.bias", np.zeros(64, np.float32))}
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.q_bias is not part of a llama model"):
        loaded(write_gguf(tmp_path / "c.gguf", **bias))
    spec = replace(SPEC, n_layers=1)
    path = write_gguf(tmp_path / "d.gguf", spec, tensors=tiny_tensors())
    with pytest.raises(ModelError, match=r"layers\.1\.attn_norm has no place in 1 layers"):
        loaded(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not supported"),
        ({"architectures": None}, "None is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias = Tr"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "rope type 'longrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "mscale": 2.0}}, "mscale = 2.0"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
    ],
)
def test_hf_features_we_lack_are_refused(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        open_model(write_hf(tmp_path / "model", config=config))


def test_a_config_without_a_needed_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="hidden_size must be a whole number, found 'wide'"):
        open_model(write_hf(tmp_path / "model", config={"hidden_size": "wide"}))


def test_mistral_with_a_window_as_wide_as_its_context_is_plain_llama(tmp_path: Path) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "sliding_window": SPEC.context_length}
    spec = open_model(write_hf(tmp_path / "model", config=changes)).spec
    assert spec == replace(SPEC, architecture="mistral")


def test_old_style_rope_keys_and_several_end_tokens_are_read(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    changes = {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": 5e5}
    folder = write_hf(tmp_path / "model", config={**changes, "eos_token_id": 2})
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    spec = open_model(folder).spec
    assert spec.rope_theta == 5e5 and spec.rope_scaling == RopeScaling("linear", 2.0)
    assert spec.end_ids == (2, 7)


def test_a_folder_without_safetensors_says_what_it_wants(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"expected model\.safetensors or"):
        open_model(folder)
    (folder / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        open_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        open_model(folder)


@pytest.mark.parametrize("name", ["gone.safetensors", "../model.safetensors"])
def test_a_shard_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    folder = write_hf(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="which is not there"):
        open_model(folder)
