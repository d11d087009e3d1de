"""Token ids to text, one token at a time, never showing half a character.

Decodes a short window again for each token and hands out what is new in it. The ids before the
text (a prompt's end) prime the window: a tokenizer may drop a space at the start of a text but not
inside one, and a prompt may end within a character that the first drawn token completes. Knows no
stop strings and no requests. Called by the front end and, in the engine, by stop watches.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import Tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
HELD = 3  # an unfinished UTF-8 character has at most three bytes, each at most one BROKEN
CONTEXT = 6
MAX_CONTEXT = 16
MAX_WINDOW = 32


class Detok:
    """One sequence's text so far. Joined returns of `push` and `flush` are the text of its ids."""

    __slots__ = ("_before", "_sent", "_text", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """`context`: ids in front of the first one, all or the last few."""
        self._tokenizer = tokenizer
        tail = _tail(tokenizer, context)
        n_open = _n_unfinished(tokenizer, tail)
        self._window = _context(tokenizer, tail[: len(tail) - n_open])
        self._text = tokenizer.decode(self._window, skip_special=False)
        self._sent = len(self._text) - _n_broken(self._text)
        self._before = ""
        for token_id in tail[len(tail) - n_open :]:
            self.push(token_id)
        # The context's own end, while it may still turn out to be no more than a broken character.
        self._before = self._text[self._sent :]

    @property
    def clean(self) -> bool:
        """All text of the ids pushed so far has been returned: here is a border of characters."""
        return self._sent == len(self._text)

    def push(self, token_id: int) -> str:
        """Text that has become certain with `token_id`, possibly none."""
        if token_id in self._tokenizer.special_ids:
            return ""
        earlier, clean = self._text, self.clean
        if clean and len(self._window) > CONTEXT:
            self._slide()
            earlier = self._text
        self._window.append(token_id)
        self._text = self._tokenizer.decode(self._window, skip_special=False)
        if not self._text.startswith(earlier[: self._sent]):
            # A decoder that takes back what it wrote (byte runs that turn out broken): what was
            # returned stands, and this token starts a window of its own.
            self._window, self._sent = [token_id], 0
            self._text = self._tokenizer.decode(self._window, skip_special=False)
        text = self._take(len(self._text) - _n_broken(self._text))
        if len(self._window) > MAX_WINDOW:
            self._shorten()
        return text

    def flush(self) -> str:
        """The rest, broken characters included. Nothing may be pushed afterwards."""
        return self._take(len(self._text))

    def _take(self, end: int) -> str:
        if self._before and end > self._sent:
            if self._text.startswith(self._before, self._sent):
                self._sent = min(self._sent + len(self._before), end)
            self._before = ""
        start, self._sent = self._sent, max(self._sent, end)
        return self._text[start:end]

    def _slide(self) -> None:
        """Keep the last ids only, as context."""
        self._window = _context(self._tokenizer, self._window)
        self._text = self._tokenizer.decode(self._window, skip_special=False)
        self._sent = len(self._text)

    def _shorten(self) -> None:
        """Bound the work on endless broken bytes: cut where both parts decode as they do joined."""
        for n in range(len(self._window) - CONTEXT, len(self._window)):
            head, tail = (
                self._tokenizer.decode(part, skip_special=False)
                for part in (self._window[:n], self._window[n:])
            )
            if head + tail == self._text and len(head) <= self._sent:
                self._window, self._text = self._window[n:], tail
                self._sent -= len(head)
                return


def _tail(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The last ids that can matter; control tokens have no text."""
    return [i for i in ids[-2 * MAX_CONTEXT :] if i not in tokenizer.special_ids]


def _context(tokenizer: Tokenizer, tail: list[int]) -> list[int]:
    """The last few ids, and more where those start within a character."""
    for n in range(CONTEXT // 2, MAX_CONTEXT):
        if n >= len(tail) or not tokenizer.decode(tail[-n:], False).startswith(BROKEN):
            return tail[-n:]
    return tail[-MAX_CONTEXT:]


def _n_unfinished(tokenizer: Tokenizer, tail: list[int]) -> int:
    """How many ids at the end belong to a character that is not complete. 0 if it is garbage.

    Some decoders turn a whole run of byte tokens into broken characters because of its last one,
    so these are set apart from what is in front of them.
    """
    for n in range(min(HELD, len(tail)) + 1):
        if not tokenizer.decode(tail[: len(tail) - n], False).endswith(BROKEN):
            return n
    return 0


def _n_broken(text: str) -> int:
    """Length of the run of BROKEN at the end that later bytes may still change."""
    return min(len(text) - len(text.rstrip(BROKEN)), HELD)
