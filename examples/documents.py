"""The documents in `data/`, and a small word search over them. No model is needed here."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
COMMON = """a an and are at be by can do does for from how i in is it long many may me much must of
on one or s that the there they to was what when where which who with you"""


@dataclass(frozen=True)
class Document:
    """One text file: its name without the ending, its first line, and the rest."""

    name: str
    title: str
    text: str

    def sentences(self) -> list[Document]:
        """The text cut after each full stop, each sentence a document of its own."""
        return [Document(self.name, "", text) for text in re.split(r"(?<=\.)\s+", self.text)]


def load(folder: Path = DATA) -> list[Document]:
    """Every .txt file of `folder`, by name."""
    documents = []
    for path in sorted(folder.glob("*.txt")):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        documents.append(Document(path.stem, title.strip(), " ".join(text.split())))
    return documents


def words(text: str) -> list[str]:
    """The words that say something, in lower case and without a plural's s."""
    common = COMMON.split()
    found = re.findall(r"[a-z0-9]+", text.lower())
    return [word.removesuffix("s") for word in found if word not in common]


def search(documents: list[Document], query: str, most: int) -> list[Document]:
    """At most `most` documents that share a word with `query`, the best first.

    A word counts more the fewer documents hold it, and more in a title.
    """
    contents = [Counter(words(f"{each.title} {each.title} {each.text}")) for each in documents]
    spread = Counter(word for content in contents for word in content)
    wanted = set(words(query))

    def score(content: Counter[str]) -> float:
        return sum(
            math.log(1 + len(documents) / spread[word]) * content[word] / (content[word] + 1)
            for word in wanted
            if word in content
        )

    ranked = sorted(zip(map(score, contents), documents, strict=True), key=lambda pair: -pair[0])
    return [document for value, document in ranked[:most] if value > 0]
