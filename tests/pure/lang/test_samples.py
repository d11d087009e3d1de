"""`n` samples of one call: a list, own seeds, one prefill, and the text goes on after the first."""

from __future__ import annotations

import asyncio

import pytest
from engines import fake_engine

from branchwork.lang import dsl as bw
from branchwork.lang.calls import derive_seed
from branchwork.lang.errors import ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.request import Request
from branchwork.lang.state import State


@program(temperature=1.0, seed=5)
def three(s: State) -> None:
    s += "tell me: " + bw.gen("x", n=3, max_tokens=6) + " so: " + bw.gen("y", max_tokens=4)


def by_seed(prompt: str, request: Request) -> str:
    return f"{request.sampling.seed}"[:4]


def test_samples_are_a_list_drawn_by_their_own_seeds() -> None:
    client = MockClient(by_seed)
    state = three.run(engine=client)
    seeds = [derive_seed(5, (), 0, sample) for sample in range(3)]
    assert [request.sampling.seed for request in client.requests] == [*seeds, derive_seed(5, (), 1)]
    assert state["x"] == [f"{seed}"[:4] for seed in seeds]
    assert len(set(state["x"])) == 3
    assert state.raw("x") == state["x"][0]


def test_the_text_goes_on_after_the_first_sample() -> None:
    state = three.run(engine=MockClient(by_seed))
    assert state.text() == f"tell me: {state['x'][0]} so: {state['y']}"


def test_one_sample_is_a_text_and_no_list() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x", n=1)

    state = p.run(engine=MockClient({"a": "b"}))
    assert state["x"] == "b"
    assert state.meta("x").samples == ()


def test_each_samples_cost_is_told_and_the_report_has_their_sum() -> None:
    state = three.run(engine=MockClient(by_seed))
    meta = state.meta("x")
    assert [one.completion_tokens for one in meta.samples] == [5, 5, 5]
    assert meta.token_ids == meta.samples[0].token_ids != meta.samples[1].token_ids
    record = state.explain().records[0]
    assert record.completion_tokens == 15
    assert record.prompt_tokens == 3 * meta.prompt_tokens


def test_samples_share_one_prefill() -> None:
    @program(temperature=1.0, seed=5)
    def p(s: State) -> None:
        s += "q " * 60 + bw.gen("x", n=6, max_tokens=5, ignore_eos=True)

    with fake_engine() as fake:
        state = p.run(engine=fake.client)
        again = p.run(engine=fake.client)
        assert fake.scheduler.counters.computed_tokens < 120 + 2 * 6 * 5 + 6
    assert state["x"] == again["x"]
    assert len(set(state["x"])) == 6
    assert sum(one.computed_tokens for one in state.meta("x").samples) <= 120 + 6 * 5


def test_a_samples_failure_ends_the_others_and_is_the_calls() -> None:
    bad = derive_seed(5, (), 0, 1)

    def script(prompt: str, request: Request) -> str:
        if request.sampling.seed == bad:
            raise ValueError("sample 1")
        return "fine"

    client = MockClient(script)
    with pytest.raises(ProgramError, match="sample 1"):
        three.run(engine=client)
    assert client.open_streams == 0


def test_a_late_call_cancels_all_its_samples() -> None:
    client = MockClient(delay=30)

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x", n=4, timeout=0.05)

    with pytest.raises(ProgramError, match="longer than"):
        p.run(engine=client)
    assert (client.n_cancelled, client.open_streams) == (4, 0)


def test_a_stream_hears_the_sample_that_goes_on() -> None:
    async def heard() -> tuple[str, State | None]:
        stream = three.stream(engine=MockClient(by_seed, delta_tokens=2))
        text = "".join([delta.text async for delta in stream])
        return text, stream.state

    text, state = asyncio.run(heard())
    assert state is not None
    assert text == state.text()
