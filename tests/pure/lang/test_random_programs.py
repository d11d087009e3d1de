"""Random programs give what a naive interpreter gives, and leave nothing running."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

import naive
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from strategies import program_bodies

from branchwork.lang.errors import ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.request import Delta, Request


class JitterClient:
    """Lets calls overtake each other, as a loaded engine would; repeatable by its seed."""

    def __init__(self, inner: MockClient, seed: int) -> None:
        self.inner = inner
        self._random = random.Random(seed)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)
        async for delta in self.inner.stream(request):
            yield delta

    async def aclose(self) -> None:
        await self.inner.aclose()


def run(body: naive.Body, client: MockClient, seed: int) -> naive.Outcome:
    program, states = naive.program_of(body)
    try:
        program.run(engine=JitterClient(client, seed))
    except ProgramError as error:
        return naive.Outcome(error=naive.error_of(error))
    return naive.outcome_of(states)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=program_bodies(), seed=st.integers(0, 3), size=st.sampled_from([None, 1, 3]))
def test_a_program_gives_what_the_naive_interpreter_gives(
    body: naive.Body, seed: int, size: int | None
) -> None:
    client = MockClient(naive.script, delta_tokens=size)
    outcome = run(body, client, seed)
    expected = naive.naive(body, naive.MockOracle())
    event(f"failed: {expected.error is not None}, branches: {min(len(expected.branches), 4)}")
    assert outcome == expected
    assert client.open_streams == 0


@pytest.mark.parametrize("join", [True, False])
def test_the_comparison_notices_a_wrong_answer(join: bool) -> None:
    body = (naive.Split(((naive.Ask("q:", "a"),),), join=join),)
    client = MockClient(lambda prompt, request: "wrong")
    assert run(body, client, 0) != naive.naive(body, naive.MockOracle())
