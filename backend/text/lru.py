"""A dictionary that forgets what was used least recently. Not thread-safe: its owner locks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most `size` entries."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[K, V] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        """The value, which becomes the most recently used. KeyError if there is none."""
        value = self._entries.pop(key)
        self._entries[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._size:
            del self._entries[next(iter(self._entries))]
