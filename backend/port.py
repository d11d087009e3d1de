"""The token-level port: jobs of token ids in, updates of token ids out.

`text/frontend.py` asks, an engine answers: on a thread of this process (`inprocess.py`) or, later,
in another process. All values are frozen and msgpack-able. Knows no text beyond stop strings (which
the engine must judge itself, lest it draw past them) and no tensors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec


class Trie(msgspec.Struct, frozen=True, kw_only=True):
    """Choices as a token trie below the end of a prompt (the `select` call).

    Node i holds `tokens[i]`; `parents[i]` < i is its parent node, -1 for a child of the prompt.
    `paths[c]` lists choice c's nodes from the top. `kept[c]` of them join the sequence if c wins
    (an end-of-turn node that was only scored does not). `method` is one of `lang.request.METHODS`;
    `n_bytes[c]` and `priors[c]` are what `lang.choose.pick` wants of choice c for "byte_mean" and
    for "unconditional" (where the asker has scored the choices without the prompt before).
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    method: str = "total"
    n_bytes: tuple[int, ...] = ()
    priors: tuple[float, ...] = ()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How a logit row becomes a token; `lang.sampling.Sampling` says what each field means.

    `runner/sampler.py` has the order in which they apply. `logit_bias`: (id, what is added), ids
    distinct and within the vocabulary.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def counts_drawn(self) -> bool:
        """A penalty needs to know how often each id was drawn."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to run.

    `prompt`: packed ids (`radix.key.pack`), at least one. At most `max_tokens` are drawn. `end_ids`
    end the sequence when drawn. `stop` strings end it as soon as its text holds one. Neither does
    before `min_tokens` are drawn: until then end ids cannot be drawn, and a stop string complete by
    then is plain text. `seed` is always set: the asker draws entropy where its user gave none.
    `top_logprobs`: how many of the likeliest tokens to report at each position.
    `logprobs_from`: see `lang.request.Request`. With `trie` nothing is drawn; the nodes are scored.
    """

    id: str
    prompt: bytes
    max_tokens: int
    seed: int
    rules: Rules = Rules()
    end_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    logprobs: bool = False
    top_logprobs: int = 0
    logprobs_from: int | None = None
    trie: Trie | None = None
    namespace: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended.

    `reason`: "stop" | "length" | "cancelled" | "error"; with "error", `error` is `(code, message)`
    for `lang.errors.from_wire`. `prompt_logprobs` covers positions `logprobs_from`.. of the prompt
    (position 0 has none and is left out). `node_logprobs` and `winner` belong to a trie.
    """

    reason: str
    error: tuple[str, str] | None = None
    prompt_logprobs: tuple[float, ...] = ()
    node_logprobs: tuple[float, ...] = ()
    winner: int | None = None
    cached_tokens: int = 0
    computed_tokens: int = 0


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """News of one job: tokens drawn since the last update and, once, its end.

    `logprobs` and `top_logprobs` have one entry a token where the job asked for them; the latter's
    are (id, log-probability), the likeliest first.
    """

    id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    end: End | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of an engine since it started; gauges where the name says so.

    `free_pages + cached_pages + leased_pages` always equals `total_pages`.
    """

    total_pages: int
    free_pages: int
    cached_pages: int
    leased_pages: int
    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    retractions: int
    evicted_pages: int


class Peek(msgspec.Struct, frozen=True, tag="peek"):
    """How many leading tokens of `prompt` the cache holds. Changes nothing."""

    prompt: bytes
    namespace: str = ""


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Drop all cached pages that no live job holds."""


class ReadStats(msgspec.Struct, frozen=True, tag="stats"):
    """Read the counters."""


Command = Peek | Flush | ReadStats


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a command: `tokens` for Peek, `pages` freed for Flush, `stats` for all three."""

    tokens: int = 0
    pages: int = 0
    stats: Stats


class EnginePort(Protocol):
    """An engine, wherever it runs. Safe to call from several event loops."""

    def submit(self, job: Job) -> AsyncIterator[Update]:
        """Run a job. The last update has `end`; closing the iterator cancels the job."""
        ...

    async def control(self, command: Command) -> Reply:
        """Ask or tell the cache and the counters something, between two steps."""
        ...

    async def aclose(self) -> None:
        """End all jobs with an `engine_closed` error and stop. Idempotent."""
        ...
