"""Text to token ids and back, over the `tokenizers` library.

Control tokens are recognised in trusted text only (a chat template's markup), never in what a user
wrote, so nobody can forge a turn by typing one. Knows no templates, no requests, no models and
never loads transformers. Called by the front end, the chat format and the detokeniser; immutable
once made, so threads may share it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from ...lang.errors import InvalidRequest, UnsupportedModel
from .folder import Facts, read_facts
from .prefix import Prefix, without_prefix

# Special tokens with these texts end a turn or a document in every family that has them, declared
# or not: files declare one end token and models draw others (a chat model that falls back into
# document style draws <|endoftext|>), after which nothing worth reading follows.
END_TEXTS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endofturn|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text. Control tokens are looked for in it only if it is `trusted`."""

    text: str
    trusted: bool


class Tokenizer:
    """One model's tokenizer. `encode` and `decode` are thread-safe."""

    def __init__(self, library: Library, facts: Facts) -> None:
        """Takes `library` over: its special-token, padding and truncation switches are set here."""
        library.encode_special_tokens = True
        library.no_padding()
        library.no_truncation()
        self._library = library
        spec = json.loads(library.to_str())
        self._prefix, bare = without_prefix(spec)
        self._bare = library if bare is None else _switched(Library.from_str(json.dumps(bare)))
        added: dict[int, AddedToken] = library.get_added_tokens_decoder()
        self._added = {token.content: (i, token) for i, token in added.items() if token.special}
        self.special_ids = frozenset(i for i, _ in self._added.values())
        self._lengths: dict[str, list[int]] = {}
        for content in sorted(self._added, key=len, reverse=True):
            lengths = self._lengths.setdefault(content[0], [])
            if len(content) not in lengths:
                lengths.append(len(content))
        firsts = "".join(map(re.escape, self._lengths))
        self._firsts = re.compile(f"[{firsts}]") if firsts else None
        self.facts = facts
        self.bos_id = self._id(facts.bos)
        self.eos_id = self._id(facts.eos)
        self.adds_bos = self._adds_bos()
        self.end_ids = self._end_ids()
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load from a folder with `tokenizer.json`, as Hugging Face model folders have it.

        Raises UnsupportedModel where that file is missing or cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedModel(
                f"{folder} holds no tokenizer.json; save the model's tokenizer once with "
                "transformers (AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
            )
        try:
            library = Library.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UnsupportedModel(
                f"{path} cannot be read by the tokenizers library: {error}"
            ) from error
        return cls(library, read_facts(folder))

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's chat template, if it has one."""
        return self.facts.chat_template

    @property
    def special_texts(self) -> frozenset[str]:
        """The texts of all special (control) tokens."""
        return frozenset(self._added)

    def token_id(self, text: str) -> int | None:
        """The id of the token spelt exactly `text`, if there is one."""
        found: int | None = self._library.token_to_id(text)
        return found

    def encode(self, runs: Sequence[Run], after: int | None = None) -> list[int]:
        """Ids of the joined runs, as if they were one string.

        `after` is the id that stands before them, None at the start of a prompt: tokenizers that
        put a space before a text must not do so in the middle of one. No start token is added; see
        `with_start`. Raises InvalidRequest for text that is not valid Unicode.
        """
        return self._encode(runs, after, {})

    def encode_each(
        self, runs: Sequence[Run], endings: Sequence[Run], after: int | None = None
    ) -> list[list[int]]:
        """Ids of the runs joined with each ending in turn; what they share is tokenised once."""
        memo: dict[tuple[str, bool], list[int]] = {}
        return [self._encode([*runs, ending], after, memo) for ending in endings]

    def _encode(
        self, runs: Sequence[Run], after: int | None, memo: dict[tuple[str, bool], list[int]]
    ) -> list[int]:
        ids: list[int] = []
        for piece in self._pieces(runs):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            bare = self._continues(ids[-1] if ids else after, bool(ids))
            if (piece, bare) not in memo:
                library = self._bare if bare else self._library
                memo[piece, bare] = library.encode(piece, add_special_tokens=False).ids
            ids.extend(memo[piece, bare])
        return ids

    def with_start(self, ids: list[int]) -> list[int]:
        """`ids` with the start token in front, if this tokenizer adds one and it is not there."""
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`. Bytes that are no valid UTF-8 come out as U+FFFD."""
        text: str = self._library.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def _pieces(self, runs: Sequence[Run]) -> Iterator[str | int]:
        """Split the joined text at the control tokens that stand in trusted stretches.

        Leftmost, then longest, as the library matches; a token must lie in trusted text whole.
        """
        text = "".join(run.text for run in runs)
        _check_unicode(text)
        done = 0
        for begin, end, token_id in self._controls(text, _trusted_spans(runs)):
            if begin > done:
                yield text[done:begin]
            yield token_id
            done = max(done, end)
        if done < len(text):
            yield text[done:]

    def _controls(self, text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        if self._firsts is None:
            return
        for low, high in spans:
            position = low
            while match := self._firsts.search(text, position, high):
                begin = match.start()
                position = begin + 1
                for length in self._lengths[text[begin]]:
                    found = self._added.get(text[begin : begin + length])
                    if found is not None and begin + length <= high:
                        token_id, token = found
                        if not token.single_word or _is_word(text, begin, begin + length):
                            yield (*_stripped(text, begin, begin + length, token), token_id)
                            position = begin + length
                        break

    def _continues(self, previous: int | None, inside: bool) -> bool:
        """Whether a text after `previous` must not get the tokenizer's leading space."""
        if self._prefix is Prefix.START:
            return previous is not None
        if self._prefix is Prefix.EACH:
            return not inside and previous is not None and previous not in self.special_ids
        return False

    def _id(self, text: str | None) -> int | None:
        return None if text is None else self.token_id(text)

    def _adds_bos(self) -> bool:
        """The settings decide; where they are silent, what the post-processor does."""
        if self.bos_id is None:
            return False
        if self.facts.adds_bos is not None:
            return self.facts.adds_bos
        return self._library.encode("a").ids[:1] == [self.bos_id]

    def _end_ids(self) -> tuple[int, ...]:
        known = [self._added[text][0] for text in END_TEXTS if text in self._added]
        own = [] if self.eos_id is None else [self.eos_id]
        return tuple(dict.fromkeys([*own, *self.facts.end_ids, *known]))


def _switched(library: Library) -> Library:
    library.encode_special_tokens = True
    library.no_padding()
    library.no_truncation()
    return library


def _trusted_spans(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Character spans of the trusted text; touching runs are one span."""
    spans: list[tuple[int, int]] = []
    position = 0
    for run in runs:
        end = position + len(run.text)
        if run.trusted and run.text:
            if spans and spans[-1][1] == position:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((position, end))
        position = end
    return spans


def _stripped(text: str, begin: int, end: int, token: AddedToken) -> tuple[int, int]:
    """A token may swallow the white space beside it."""
    if token.lstrip:
        begin = len(text[:begin].rstrip())
    if token.rstrip:
        end = len(text) - len(text[end:].lstrip())
    return begin, end


def _is_word(text: str, begin: int, end: int) -> bool:
    """No word character touches `text[begin:end]`."""
    before, after = text[begin - 1 : begin] if begin else "", text[end : end + 1]
    return not re.match(r"\w", before) and not re.match(r"\w", after)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidRequest(
            f"text must be valid Unicode, found the lone surrogate U+{code:04X} at character "
            f"{error.start}; decode the bytes it came from as UTF-8 (errors='replace') first"
        ) from error
