"""What `gen` and a program say of sampling reaches the client, and what it says can be done."""

from __future__ import annotations

from typing import Any

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import InvalidRequest, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.sampling import Sampling, bias_of
from branchwork.lang.state import State

SHARED: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.4,
}
OWN: dict[str, Any] = {
    "min_tokens": 3,
    "logit_bias": {5: -1.0, "6": 2},
    "stop": "x",
    "stop_token_ids": [9],
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 2,
}


def test_every_option_of_a_call_reaches_the_client() -> None:
    client = MockClient()

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x", max_tokens=9, **SHARED, **OWN)

    state = p.run(engine=client)
    assert state.meta("x").logprobs is not None
    assert state.meta("x").top_logprobs is not None
    own = OWN | {"logit_bias": ((5, -1.0), (6, 2.0)), "stop": ("x",), "stop_token_ids": (9,)}
    assert client.requests[0].sampling == Sampling(max_tokens=9, **SHARED, **own)


def test_a_programs_options_hold_where_a_call_gives_none() -> None:
    client = MockClient()

    def p(s: State) -> None:
        s += "a" + bw.gen("x") + bw.gen("y", temperature=0, top_k=0, repetition_penalty=1.0)

    program(max_tokens=9, **SHARED)(p).run(engine=client)
    program(p).using(max_tokens=9, **SHARED).run(engine=client)
    one, two, *again = client.requests
    assert again == [one, two]
    assert one.sampling == Sampling(max_tokens=9, **SHARED)
    changed = SHARED | {"temperature": 0, "top_k": 0, "repetition_penalty": 1.0}
    assert two.sampling == Sampling(max_tokens=9, **changed)


def test_min_tokens_is_held_against_the_length_that_holds() -> None:
    @program(max_tokens=300)
    def long(s: State) -> None:
        s += "a" + bw.gen("x", min_tokens=299, stop="zz", ignore_eos=True)

    @program
    def short(s: State) -> None:
        s += "a" + bw.gen("x", min_tokens=299)

    assert long.run(engine=MockClient())["x"]
    with pytest.raises(ProgramError, match="min_tokens must be from 0 to max_tokens 256") as failed:
        short.run(engine=MockClient())
    assert isinstance(failed.value.__cause__, InvalidRequest)


def test_a_bias_is_read_from_jsons_keys() -> None:
    assert bias_of({"12": 1, 3: -2.5}) == ((12, 1.0), (3, -2.5))
    assert bias_of({}) == ()


@pytest.mark.parametrize("key", ["x", "1.5", "", "--1", "²", " 1"])
def test_a_bias_of_no_token_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias must be") as refused:
        bias_of({"1": 1, key: 1})
    assert repr(key) in str(refused.value)
