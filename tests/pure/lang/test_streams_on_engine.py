"""Streams through the whole stack but the tensors: what is heard, and what is freed."""

from __future__ import annotations

import asyncio

import naive
from engines import LETTERS, fake_engine
from hypothesis import HealthCheck, given, settings
from strategies import program_bodies

from branchwork.lang import dsl as bw
from branchwork.lang.program import program
from branchwork.lang.state import State


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=program_bodies(flags=(False, True)))
def test_deltas_from_the_engine_join_to_the_states_text(body: naive.Body) -> None:
    made, _ = naive.program_of(body)
    with fake_engine(600) as fake:
        stream = made.stream(engine=fake.client)
        text = "".join(delta.text for delta in stream)
        assert stream.state is not None
        assert text == stream.state.text()


async def test_leaving_a_stream_frees_every_page_it_leased() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(3)
        branches += "a long story:" + bw.gen("x", max_tokens=500, ignore_eos=True)
        s += "and" + bw.gen("y", max_tokens=500, ignore_eos=True)

    with fake_engine(600, letters=LETTERS) as fake:
        stream = p.stream(engine=fake.client, branches=True)
        n = 0
        async for _ in stream:
            n += 1
            if n == 20:
                break
        await stream.aclose()
        stats = await asyncio.wait_for(fake.when_idle(), 10)
        assert (stats.leased_pages, stats.running, stats.waiting) == (0, 0, 0)
        assert stats.computed_tokens < 1500
