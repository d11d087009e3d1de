"""Stop strings: found wherever token borders fall, and never shown in part.

The rule does not depend on how the text is cut into tokens: reading character by character, the
stop string that is complete first ends the text; of several complete at the same character the
longest counts. So "bc" beats "abcd", and "abc" beats "bc". Where a call wants a least number of
tokens, only a stop string that is not complete with those ends it. Knows no requests. Called by the
front end (`StopBuffer`) and, through a factory, by the engine (`StopWatch`); both must judge alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .detok import Detok
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Hit:
    """Stop string `stop` begins at character `position` of the whole text."""

    stop: str
    position: int


class StopBuffer:
    """Holds back the end of a text while it could be the beginning of a stop string."""

    __slots__ = ("_held", "_n_sent", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings, in any order."""
        self._stops = tuple(stops)
        self._held = ""
        self._n_sent = 0

    def push(self, text: str, counts: bool = True) -> tuple[str, Hit | None]:
        """Text that is safe to show, and the hit. Push nothing after a hit.

        Without `counts` a stop string that `text` completes is no hit, now or later.
        """
        n_held = len(self._held)
        text = self._held + text
        found = [
            (begin + len(stop), -len(stop), stop)
            for stop in self._stops
            if (begin := text.find(stop, max(0, n_held + 1 - len(stop)))) >= 0
        ]
        if found and counts:
            end, _, stop = min(found)
            hit = Hit(stop, self._n_sent + end - len(stop))
            return self._send(text, end - len(stop)), hit
        return self._send(text, len(text) - self._n_doubtful(text)), None

    def flush(self) -> str:
        """What was held back, when the text ends without a hit."""
        return self._send(self._held, len(self._held))

    def _send(self, text: str, n: int) -> str:
        self._held = text[n:]
        self._n_sent += n
        return text[:n]

    def _n_doubtful(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:n]):
                    longest = n
                    break
        return longest


class StopWatch:
    """Tells the engine at which drawn token a sequence's text holds a stop string."""

    __slots__ = ("_buffer", "_detok", "_n_free")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        prompt: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """`prompt`: the ids in front; how a first token reads may depend on them.

        `min_tokens`: so many tokens complete no stop string.
        """
        self._detok = Detok(tokenizer, prompt)
        self._buffer = StopBuffer(stops)
        self._n_free = min_tokens

    def push(self, token_id: int) -> str | None:
        """Take the next drawn token; the stop string that is now complete, or None."""
        text = self._detok.push(token_id)
        self._n_free -= 1
        if not text:
            return None
        _, hit = self._buffer.push(text, counts=self._n_free < 0)
        return None if hit is None else hit.stop


def watch_factory(
    tokenizer: Tokenizer,
) -> Callable[[tuple[str, ...], Sequence[int], int], StopWatch]:
    """What the scheduler calls with a job's stop strings, prompt and least number of tokens."""
    return lambda stops, prompt, min_tokens: StopWatch(tokenizer, stops, prompt, min_tokens)
