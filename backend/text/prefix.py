"""Which tokenizers put a space before a text, and the same tokenizer without that habit.

SentencePiece tokenizers write "Hello" as "▁Hello" so that words look alike everywhere. In the
middle of a prompt this would invent a space. Knows only the JSON of `tokenizer.json`. Called by
`tokenizer.py`.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any


class Prefix(Enum):
    """Where the space goes."""

    NEVER = "never"
    START = "before the first text of the whole string only"
    EACH = "before every text that follows a control token, too"


def without_prefix(spec: dict[str, Any]) -> tuple[Prefix, dict[str, Any] | None]:
    """What a parsed `tokenizer.json` does, and a copy that does not (None if it never does)."""
    found = Prefix.NEVER
    bare = {key: value for key, value in spec.items() if key not in ("normalizer", "pre_tokenizer")}
    for stage, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        whole = copy.deepcopy(spec.get(stage))
        bare[stage] = whole
        parts = [] if whole is None else whole.get(inner, [whole])
        for part in parts:
            habit = _disarm(part)
            found = habit if habit is not Prefix.NEVER else found
        if whole is not None and whole.get("type") == "Prepend":
            bare[stage] = None
        elif whole is not None and inner in whole:
            whole[inner] = [part for part in parts if part["type"] != "Prepend"]
    return found, None if found is Prefix.NEVER else bare


def _disarm(part: dict[str, Any]) -> Prefix:
    """Switch the leading space of one stage off, in place; what it did."""
    match part:
        case {"type": "Prepend"}:
            return Prefix.EACH
        case {"type": "Metaspace", "prepend_scheme": ("first" | "always") as scheme}:
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
            return Prefix.START if scheme == "first" else Prefix.EACH
        case {"type": "ByteLevel", "add_prefix_space": True}:
            part["add_prefix_space"] = False
            return Prefix.EACH
    return Prefix.NEVER
