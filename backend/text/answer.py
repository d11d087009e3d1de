"""What comes back from the engine, as text: deltas while it runs, one finish at the end.

Knows no ports and no templates. Called by the front end, one object a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...lang.choose import pick, scores
from ...lang.request import Delta, Finish, Likely, Request, Text, Tokens, Usage
from ...lang.sampling import Sampling
from ..port import End, Update
from .detok import Detok
from .select import Choices
from .stops import Hit, StopBuffer
from .tokenizer import Tokenizer


def end_ids(tokenizer: Tokenizer, sampling: Sampling) -> tuple[int, ...]:
    """The tokens that end a call when drawn and are not part of its text, each once."""
    own = () if sampling.ignore_eos else tokenizer.end_ids
    return tuple(dict.fromkeys([*own, *sampling.stop_token_ids]))


class Drawn:
    """The drawn tokens of one call and their text."""

    def __init__(self, tokenizer: Tokenizer, prompt: Tokens, request: Request) -> None:
        sampling = request.sampling
        self._end_ids = end_ids(tokenizer, sampling)
        self._tokenizer = tokenizer
        self._prompt, self._request = prompt, request
        self._detok = Detok(tokenizer, prompt.ids)
        self._buffer = StopBuffer(sampling.stop)
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._likeliest: list[tuple[Likely, ...]] = []
        self._text = ""  # all text, what is held back included
        self._borders = [0]  # length of the text after n tokens; -1 within a character
        self._ended = False
        self.hit: Hit | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens were drawn so far."""
        return len(self._ids)

    @property
    def over(self) -> bool:
        """The value is complete, whatever the engine says."""
        return self.hit is not None or self._ended

    def push(self, update: Update) -> Delta:
        """Take newly drawn tokens; the text that can be shown. What follows the end is ignored."""
        first, shown = len(self._ids), ""
        for i, token_id in enumerate(update.tokens):
            if self.over:
                break
            self._ids.append(token_id)
            self._logprobs.extend(update.logprobs[i : i + 1])
            self._likeliest.extend(map(self._named, update.top_logprobs[i : i + 1]))
            if token_id in self._end_ids:
                self._ended = True
                break
            text = self._detok.push(token_id)
            self._text += text
            self._borders.append(len(self._text) if self._detok.clean else -1)
            counts = len(self._ids) > self._request.sampling.min_tokens
            safe, self.hit = self._buffer.push(text, counts) if text else ("", None)
            shown += safe
        return Delta(text=shown, ids=tuple(self._ids[first:]))

    def _named(self, likeliest: tuple[tuple[int, float], ...]) -> tuple[Likely, ...]:
        return tuple(
            Likely(id=token_id, text=self._tokenizer.decode([token_id], False), logprob=logprob)
            for token_id, logprob in likeliest
        )

    def finish(self, end: End, usage: Usage) -> Delta:
        """The last delta."""
        if self.hit is None:
            rest = self._detok.flush()
            self._text += rest
            shown = self._buffer.flush() + rest
            n_kept, n_text = len(self._ids) - self._ended, len(self._text)
            text, tail = self._text, ""
        else:
            shown, position = "", self.hit.position
            n_kept = max(n for n, at in enumerate(self._borders) if 0 <= at <= position)
            n_text = self._borders[n_kept]
            text, tail = self._text[:position], self._text[n_text:position]
        kept = Tokens(tuple(self._ids[:n_kept]), (Text(self._text[:n_text]),))
        sampling = self._request.sampling
        finish = Finish(
            reason="stop" if self.over else end.reason,
            text=text,
            prompt=self._prompt,
            kept=kept,
            tail=tail,
            stop=None if self.hit is None else self.hit.stop,
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs) if sampling.logprobs else None,
            top_logprobs=tuple(self._likeliest) if sampling.top_logprobs else None,
            prompt_logprobs=prompt_logprobs(self._request, end),
            usage=usage,
        )
        return Delta(text=shown, finish=finish)


def chosen(choices: Choices, prompt: Tokens, request: Request, end: End, usage: Usage) -> Delta:
    """The one delta of a call with choices."""
    trie = choices.trie
    paths = choices.logprobs(end.node_logprobs)
    winner = end.winner
    if winner is None:
        winner = pick(trie.method, paths, trie.n_bytes, trie.priors)
    text = request.choices[winner]
    ids = choices.kept_ids(winner)
    finish = Finish(
        reason="stop",
        text=text,
        prompt=prompt,
        kept=Tokens(ids, (Text(text),)),
        prompt_logprobs=prompt_logprobs(request, end),
        winner=winner,
        scores=scores(request.choices, paths, trie.priors),
        usage=usage,
    )
    return Delta(text=text, ids=ids, finish=finish)


def prompt_logprobs(request: Request, end: End) -> tuple[float | None, ...] | None:
    """One entry a prompt token from `logprobs_from` on; the first token of all has none."""
    if request.logprobs_from is None:
        return None
    first: Sequence[float | None] = (None,) if request.logprobs_from == 0 else ()
    return (*first, *end.prompt_logprobs)
