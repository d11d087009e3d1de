"""Typed reading of the untyped values in a config or a header.

Knows no model. Called by `spec_hf.py` and `spec_gguf.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...lang.errors import ModelError, UnsupportedModel


class Facts:
    """A mapping; a missing or odd value is a ModelError naming it and the file."""

    def __init__(self, values: Mapping[str, object], origin: str, prefix: str = "") -> None:
        """`origin` names the file in messages; `prefix` stands before every key."""
        self.origin = origin
        self._values = values
        self._prefix = prefix

    def get(self, key: str) -> object:
        """The value as it stands, None where it is missing."""
        return self._values.get(self._prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number; `default` where it is missing or null."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(
                f"{self.origin}: {self._prefix}{key} must be a whole number, found {value!r}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number; `default` where it is missing or null."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(
                f"{self.origin}: {self._prefix}{key} must be a number, found {value!r}"
            )
        return float(value)

    def positive(self, key: str) -> float | None:
        """A number above 0; None where it is missing, null or 0, which all mean "none"."""
        value = self.number(key, 0.0)
        if value < 0:
            raise ModelError(
                f"{self.origin}: {self._prefix}{key} must not be negative, found {value!r}"
            )
        return value or None

    def must_be(self, key: str, allowed: Collection[object]) -> None:
        """Refuse a model whose `key` is something we do not run (None stands for missing)."""
        if self.get(key) not in allowed:
            raise UnsupportedModel(
                f"{self.origin}: {self._prefix}{key} = {self.get(key)!r} is not supported "
                f"(supported: {', '.join(map(repr, allowed))})"
            )


def unsupported(found: object, supported: Collection[str], origin: str) -> UnsupportedModel:
    """The refusal of an architecture, with the list of those we run."""
    return UnsupportedModel(
        f"{origin}: architecture {found!r} is not supported (supported: {', '.join(supported)})"
    )


def unique_ids(*found: object) -> tuple[int, ...]:
    """Token ids in order of appearance; an entry may be an id, a list of ids or None."""
    ids: dict[int, None] = {}
    for entry in found:
        for value in entry if isinstance(entry, (list, tuple)) else (entry,):
            if isinstance(value, int) and not isinstance(value, bool):
                ids[value] = None
    return tuple(ids)


def one_id(found: object) -> int | None:
    """A token id, None where the file names none."""
    return found if isinstance(found, int) and not isinstance(found, bool) else None
