"""What a model folder says about its tokenizer beside `tokenizer.json` itself.

Reads `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`,
`generation_config.json` and `config.json`, each of which may be missing. Knows only file formats.
Called by `tokenizer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...lang.errors import UnsupportedModel

NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Facts:
    """`names`: what templates may mention ("bos_token": "<s>"). `adds_bos` None: not said.

    `end_ids`: the ids declared to end a generation, beside the eos token.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    adds_bos: bool | None = None
    end_ids: tuple[int, ...] = ()
    chat_template: str | None = None

    @property
    def bos(self) -> str | None:
        """Text of the start token."""
        return self.names.get("bos_token")

    @property
    def eos(self) -> str | None:
        """Text of the end token."""
        return self.names.get("eos_token")


def read_facts(folder: Path) -> Facts:
    """Facts of a Hugging Face model folder or of a converted tokenizer's folder.

    Raises UnsupportedModel for a file that is there but no JSON.
    """
    config = _json(folder / "tokenizer_config.json")
    older = _json(folder / "special_tokens_map.json")
    names = {
        name: text
        for name in NAMES
        if (text := _content(config.get(name, older.get(name)))) is not None
    }
    adds = config.get("add_bos_token")
    generation, model = _json(folder / "generation_config.json"), _json(folder / "config.json")
    ends = [*_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))]
    return Facts(
        names=names,
        adds_bos=adds if isinstance(adds, bool) else None,
        end_ids=tuple(dict.fromkeys(ends)),
        chat_template=_template(folder, config),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(
            f"{path} is no valid JSON ({error}); fetch the model again"
        ) from error
    return value if isinstance(value, dict) else {}


def _content(token: object) -> str | None:
    """A token is written as its text or as `{"content": text, ...}`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool)]


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The file wins over the config's field, which is one source or a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {item["name"]: item["template"] for item in value}
        value = named.get("default")
    return value if isinstance(value, str) else None
