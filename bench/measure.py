"""One run of one workload, in tokens and seconds. Knows no engine. Used by `offline` and others."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count

import msgspec

from ..lang.client import Client
from ..lang.explain import savings
from ..lang.program import Engine, client_of
from ..lang.request import Delta, Request
from .workloads import Workload


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as in `request.Usage`, summed over all calls; `seconds` by the wall.

    `slowest_first`: the longest that a call waited for its first token.
    """

    calls: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    drawn_tokens: int
    seconds: float
    slowest_first: float


def run(workload: Workload, engine: Engine) -> Outcome:
    """Run it and add up; asserts that it made the calls and drew the tokens it says."""
    start = time.perf_counter()
    states = workload.run(engine)
    seconds = time.perf_counter() - start
    records = [call for state in states for call in state.explain().records]
    total = savings(records)
    assert total.calls == workload.n_calls, f"{workload.name} made {total.calls} calls"
    drawn = total.completion_tokens
    assert drawn == workload.n_drawn, f"{workload.name} drew {drawn} tokens"
    return Outcome(
        calls=total.calls,
        prompt_tokens=total.prompt_tokens,
        cached_tokens=total.cached_tokens,
        computed_tokens=total.computed_tokens,
        drawn_tokens=drawn,
        seconds=seconds,
        slowest_first=max(call.time_to_first_token for call in records),
    )


class Unshared:
    """A client that lets no call see what another computed: a cache namespace a call."""

    def __init__(self, engine: Engine) -> None:
        """`engine` answers."""
        self._client: Client = client_of(engine)
        self._numbers = count()

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """As the client's."""
        alone = msgspec.structs.replace(request, namespace=f"alone-{next(self._numbers)}")
        deltas = self._client.stream(alone)
        try:
            async for delta in deltas:
                yield delta
        finally:
            if isinstance(deltas, AsyncGenerator):
                await deltas.aclose()

    async def aclose(self) -> None:
        """The engine is closed by who opened it."""
