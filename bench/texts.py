"""Seeded plain text for the workloads: sentences of common words, never the same twice.

A word here is one token of most English vocabularies. Knows no model. Used by `workloads`.
"""

from __future__ import annotations

import random

_NAMES = (
    "river", "garden", "letter", "window", "market", "winter", "bridge", "teacher", "island",
    "engine", "forest", "doctor", "kitchen", "station", "village", "library", "farmer", "harbor",
    "mountain", "painter", "summer", "table", "road", "school", "child", "house", "king", "story",
)  # fmt: skip
_KINDS = (
    "old", "small", "quiet", "bright", "heavy", "early", "strange", "simple", "deep", "common",
    "warm", "long", "green", "young", "famous", "open", "cold", "new", "great", "late",
)  # fmt: skip
_DEEDS = (
    "follows", "keeps", "finds", "leaves", "holds", "changes", "answers", "reaches", "brings",
    "needs", "shows", "meets", "carries", "watches", "builds", "hears",
)  # fmt: skip
_PLACES = ("near", "behind", "before", "under", "after", "beside", "without", "against")


class Texts:
    """Text that is a function of the seed and of what was asked for before."""

    def __init__(self, *seed: object) -> None:
        """`seed`: anything with a stable text, such as numbers and names."""
        self._random = random.Random(":".join(map(str, seed)))

    def number(self) -> int:
        """Three digits."""
        return self._random.randrange(100, 1000)

    def topic(self) -> str:
        """Two words and a number."""
        return f"{self._one(_KINDS)} {self._one(_NAMES)} {self.number()}"

    def sentence(self) -> str:
        """Ten words and a full stop."""
        pick = self._one
        return (
            f"The {pick(_KINDS)} {pick(_NAMES)} {pick(_DEEDS)} the {pick(_KINDS)} {pick(_NAMES)} "
            f"{pick(_PLACES)} the {pick(_NAMES)}."
        )

    def words(self, n_words: int) -> str:
        """Sentences of `n_words` words at least, at most ten more."""
        return " ".join(self.sentence() for _ in range(-(-n_words // 10)))

    def shuffled(self, n: int) -> list[int]:
        """The numbers below `n` in some order."""
        order = list(range(n))
        self._random.shuffle(order)
        return order

    def _one(self, among: tuple[str, ...]) -> str:
        return self._random.choice(among)
