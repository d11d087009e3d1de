"""One variable of a program: pending, then settled with a value or an error.

A slot belongs to one run on one event loop; once settled it may be read from anywhere. Made and
settled by `run`, read by `state` and `explain`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from . import ir
from .errors import ProgramError
from .place import Place
from .request import ChoiceScore, Finish, Likely


class Meta(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a call cost and how it ended; the fields are those of `request.Usage` and `Finish`.

    With `n` above 1 they are those of the first sample, and `samples` has each one's own.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    forced_tokens: int
    finish_reason: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    top_logprobs: tuple[tuple[Likely, ...], ...] | None = None
    time_to_first_token: float
    seconds: float
    samples: tuple[Meta, ...] = ()


class Slot:
    """A name's value, now or later.

    `node` is the call that makes it (None: bound by `set` or a join), `place` tells
    the branch, `index` counts the calls of that branch.
    """

    __slots__ = (
        "_waiters",
        "done",
        "error",
        "index",
        "meta",
        "node",
        "place",
        "raw",
        "scores",
        "value",
    )

    def __init__(
        self,
        node: ir.Call | None = None,
        place: Place | None = None,
        index: int = 0,
    ) -> None:
        """A pending slot."""
        self.node = node
        self.place = place or Place()
        self.index = index
        self.value: Any = None
        self.raw: str | None = None
        self.meta: Meta | None = None
        self.scores: tuple[ChoiceScore, ...] = ()
        self.error: ProgramError | None = None
        self.done = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def settle(self, value: Any, raw: str | None = None, finishes: tuple[Finish, ...] = ()) -> None:
        """Give the value and wake who waits, unless it has failed. Does not keep the prompt.

        `finishes`: one a sample.
        """
        if self.done:
            return
        self.value = value
        self.raw = raw
        if finishes:
            self.scores = finishes[0].scores
            self.meta = _meta(finishes[0])
        if len(finishes) > 1:
            samples = tuple(map(_meta, finishes))
            self.meta = msgspec.structs.replace(samples[0], samples=samples)
        self._wake()

    def fail(self, error: ProgramError) -> None:
        """End with an error and wake who waits; a settled slot stays as it is."""
        if not self.done:
            self.error = error
            self._wake()

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done when the slot is. Each reader has its own: one may be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.done:
            future.set_result(None)
        else:
            self._waiters = [*(self._waiters or ()), future]
        return future

    def _wake(self) -> None:
        self.done = True
        for future in self._waiters or ():
            if not future.done():
                future.set_result(None)
        self._waiters = None


def _meta(finish: Finish) -> Meta:
    usage = finish.usage
    return Meta(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        computed_tokens=usage.computed_tokens,
        completion_tokens=usage.completion_tokens,
        forced_tokens=usage.forced_tokens,
        finish_reason=finish.reason,
        token_ids=finish.token_ids,
        logprobs=finish.logprobs,
        top_logprobs=finish.top_logprobs,
        time_to_first_token=usage.time_to_first_token,
        seconds=usage.seconds,
    )
