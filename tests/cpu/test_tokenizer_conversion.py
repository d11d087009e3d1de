"""A GGUF file's tokenizer becomes a folder that loads without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import byte_tokenizer as bytes_
import gguf
import pytest

from branchwork.backend.text.convert import convert_gguf
from branchwork.backend.text.tokenizer import Run, Tokenizer
from branchwork.lang.errors import UnsupportedModel

WORDS = ("  ", " 12", "12", " the")


def write_gguf(path: Path, pre: str = "smollm", model: str = "gpt2") -> None:
    spec = json.loads(bytes_.byte_library(words=WORDS).to_str())["model"]
    tokens = sorted(spec["vocab"], key=spec["vocab"].__getitem__)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in bytes_.SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in spec["merges"]])
    writer.add_bos_token_id(bytes_.IM_START)
    writer.add_eos_token_id(bytes_.IM_END)
    writer.add_eot_token_id(65)
    writer.add_add_bos_token(True)
    writer.add_chat_template(bytes_.CHATML)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "model.gguf")
    convert_gguf(folder / "model.gguf", folder / "derived" / "tokenizer")
    return folder / "derived" / "tokenizer"


def test_digits_are_split_one_by_one_before_anything_else(converted: Path) -> None:
    tokenizer = Tokenizer.load(converted)
    ids = tokenizer.encode([Run("  12", False)])
    assert ids == [tokenizer.token_id("ĠĠ"), ord("1"), ord("2")]


def test_everything_the_header_says_of_tokens_is_kept(converted: Path) -> None:
    tokenizer = Tokenizer.load(converted)
    assert tokenizer.end_ids == (bytes_.IM_END, 65, bytes_.ENDOFTEXT)
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (bytes_.IM_START, True)
    assert tokenizer.chat_template == bytes_.CHATML
    assert tokenizer.special_texts == set(bytes_.SPECIALS)
    text = "a the é😀 12"
    assert tokenizer.decode(tokenizer.encode([Run(text, False)])) == text


def test_nothing_half_done_is_left_beside_it(converted: Path) -> None:
    names = {path.name for path in converted.parent.iterdir()}
    assert not [name for name in names if name.startswith(".tokenizer")]


def test_a_tokenizer_that_cannot_be_converted_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", model="none-such")
    with pytest.raises(UnsupportedModel, match="cannot be converted"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "derived" / "tokenizer")
    assert not (tmp_path / "derived" / "tokenizer").exists()
