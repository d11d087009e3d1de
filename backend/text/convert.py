"""A GGUF file's tokenizer, converted once to `tokenizer.json` by transformers.

The conversion loads transformers and with it torch (seconds), so its result is kept and later
starts load with `tokenizers` alone. The only file that imports transformers; `build.py` imports it
when a first conversion is due and never otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from ...lang.errors import UnsupportedModel
from ..model.gguf_file import GgufFile

# How text is split before byte-level merges, by `tokenizer.ggml.pre`, where transformers does not
# follow it. smollm splits digits one by one first: "  12" is "ĠĠ", "1", "2".
DIGITS_FIRST = frozenset({"smollm", "command-r", "starcoder", "refact"})
END_KINDS = ("eos", "eot", "eom")


def convert_gguf(path: Path, folder: Path) -> None:
    """Write `tokenizer.json` and its companions to `folder`, which appears complete or not at all.

    The header index (`model/gguf_file.py`) is read from, or left in, the folder above `folder`.
    Raises UnsupportedModel for a tokenizer that transformers cannot convert.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    header = _header(path, folder.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _save(path, work)
        _fix_split(work / "tokenizer.json", header)
        _declare(work, header)
        _move(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _header(path: Path, index_dir: Path) -> dict[str, object]:
    """The header's single values, by the part of their name after "tokenizer.ggml."."""
    prefix = "tokenizer.ggml."
    values = GgufFile(path, index_dir).index.metadata.items()
    return {key.removeprefix(prefix): value for key, value in values if key.startswith(prefix)}


def _save(path: Path, work: Path) -> None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        tokenizer.save_pretrained(str(work))
    except (ImportError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedModel(
            f"{path}: its tokenizer cannot be converted ({error}); use the model's Hugging Face "
            "folder instead"
        ) from error
    if not (work / "tokenizer.json").is_file():
        raise UnsupportedModel(f"{path}: its tokenizer has no fast form we can run")


def _fix_split(path: Path, header: Mapping[str, object]) -> None:
    if header.get("pre") in DIGITS_FIRST:
        library = Library.from_file(str(path))
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        library.save(str(path))


def _declare(work: Path, header: Mapping[str, object]) -> None:
    """End tokens and whether a start token is added, which the conversion loses or leaves open."""
    ends = [header.get(f"{kind}_token_id") for kind in END_KINDS]
    declared = {"eos_token_id": [i for i in ends if isinstance(i, int)]}
    (work / "generation_config.json").write_text(json.dumps(declared), encoding="utf-8")
    path = work / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    adds = header.get("add_bos_token")
    # Older files say nothing; these kinds then have a start token.
    silent = header.get("model") == "llama" or header.get("pre") == "llama-bpe"
    config["add_bos_token"] = silent if adds is None else bool(adds)
    path.write_text(json.dumps(config, ensure_ascii=False, indent=2), encoding="utf-8")


def _move(work: Path, folder: Path) -> None:
    """Rename into place; where another process was first, its result stands."""
    try:
        os.replace(work, folder)
    except OSError:
        if not (folder / "tokenizer.json").is_file():
            raise
