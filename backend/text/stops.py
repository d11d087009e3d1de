"""Stop strings: found wherever token borders fall, and never shown in part.

The rule does not depend on how the text is cut into tokens: reading character by character, the
stop string that is complete first ends the text; of several complete at the same character the
longest counts. So "bc" beats "abcd", and "abc" beats "bc". Knows no requests. Called by the front
end (`StopBuffer`) and, through a factory, by the engine (`StopWatch`), which must judge alike.
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

    def push(self, text: str) -> tuple[str, Hit | None]:
        """Text that is safe to show, and the hit. Push nothing after a hit."""
        text = self._held + text
        found = [
            (begin + len(stop), -len(stop), stop)
            for stop in self._stops
            if (begin := text.find(stop)) >= 0
        ]
        if found:
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

    __slots__ = ("_buffer", "_detok")

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], prompt: Sequence[int] = ()
    ) -> None:
        """`prompt`: the ids in front; how a first token reads may depend on them."""
        self._detok = Detok(tokenizer, prompt)
        self._buffer = StopBuffer(stops)

    def push(self, token_id: int) -> str | None:
        """Take the next drawn token; the stop string that is now complete, or None."""
        text = self._detok.push(token_id)
        if not text:
            return None
        _, hit = self._buffer.push(text)
        return None if hit is None else hit.stop


def watch_factory(
    tokenizer: Tokenizer,
) -> Callable[[tuple[str, ...], Sequence[int]], StopWatch]:
    """What the scheduler calls with a job's stop strings and prompt."""
    return lambda stops, prompt: StopWatch(tokenizer, stops, prompt)
