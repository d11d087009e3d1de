"""The front end and sampling: what the engine is asked, what ends a text, what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from byte_tokenizer import ENDOFTEXT, IM_END, VOCAB_SIZE, byte_tokenizer, make
from fake_port import TOP, FakePort, follow
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwork.backend.port import Rules
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.stops import watch_factory
from branchwork.backend.text.tokenizer import Run
from branchwork.lang.client import complete
from branchwork.lang.errors import InvalidRequest
from branchwork.lang.request import Finish, Likely, Request, Text
from branchwork.lang.sampling import Sampling, bias_of

TOKENIZER = make(words=("ab", "bca", "\nc"))


def answer(port: FakePort, **options: Any) -> Finish:
    tokenizer = byte_tokenizer()
    front = Frontend(port, tokenizer, ChatFormat.of(tokenizer), 512)
    return asyncio.run(
        complete(front, Request(segments=(Text("hi"),), sampling=Sampling(**options)))
    )


def says(text: str, end: int = IM_END, **more: Any) -> FakePort:
    return FakePort(follow(text.encode(), end), watch=watch_factory(byte_tokenizer()), **more)


def test_the_engine_gets_every_rule() -> None:
    port = says("x")
    rules: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.4,
        "logit_bias": ((5, -1.0),),
    }
    answer(port, **rules, min_tokens=2, top_logprobs=3, stop_token_ids=(65, IM_END))
    answer(port, top_k=-1)
    first, second = port.jobs
    assert first.rules == Rules(**rules)
    assert (first.min_tokens, first.top_logprobs, first.logprobs) == (2, 3, False)
    assert first.end_ids == (IM_END, ENDOFTEXT, 65)
    assert second.rules == Rules()


@pytest.mark.parametrize("bad", [VOCAB_SIZE, 99999999, -1])
@pytest.mark.parametrize("kind", ["logit_bias", "stop_token_ids"])
def test_ids_the_model_does_not_have_are_refused_by_name_before_scheduling(
    kind: str, bad: int
) -> None:
    """BR-15: four of its kind, the fifth is no id at all."""
    port = says("x")
    options = {kind: (97, bad) if kind == "stop_token_ids" else bias_of({97: 1, str(bad): 5})}
    with pytest.raises(InvalidRequest, match=rf"{kind}: {bad} is no token.* 0 to {VOCAB_SIZE - 1}"):
        answer(port, **options)
    assert port.jobs == []
    assert answer(port, **{kind: ()}).text == "x"


def test_a_stop_token_ends_the_text_and_is_not_kept_even_past_end_tokens() -> None:
    finish = answer(says("a", end=98), stop_token_ids=(98,), ignore_eos=True)
    assert (finish.reason, finish.text, finish.kept.ids) == ("stop", "a", (97,))
    assert finish.token_ids == (97, 98)
    assert finish.stop is None


def test_several_end_ids_end_the_text_alike() -> None:
    for end in (IM_END, ENDOFTEXT, 98):
        finish = answer(says("a", end=end), stop_token_ids=(98,))
        assert (finish.reason, finish.kept.ids) == ("stop", (97,))


def test_the_likeliest_come_with_their_texts() -> None:
    finish = answer(says("ab"), top_logprobs=2)
    named = (
        Likely(id=ord("q"), text="q", logprob=-0.1),
        Likely(id=0xF0, text="\ufffd", logprob=-2.0),
    )
    assert finish.top_logprobs == (named,) * 3  # the end token's position too
    assert finish.logprobs is None
    assert answer(says("ab"), logprobs=True).top_logprobs is None
    assert len(TOP) == 3


def test_min_tokens_that_leave_nothing_to_draw_are_refused() -> None:
    every = tuple(range(VOCAB_SIZE))
    with pytest.raises(InvalidRequest, match="every token of the model ends the text"):
        answer(says("a"), min_tokens=1, stop_token_ids=every)
    assert answer(says("a"), stop_token_ids=every).text == ""


@pytest.mark.parametrize(
    ("min_tokens", "text", "kept"),
    [
        (0, "ab", "a"),
        (1, "ab", "a"),
        (2, "abxab", "abxa"),  # complete with the second token: plain text
        (4, "abxab", "abxa"),  # begun within the least number, complete after it
        (5, "abxab", "abxab"),
    ],
)
def test_a_stop_string_counts_once_the_least_number_of_tokens_is_drawn(
    min_tokens: int, text: str, kept: str
) -> None:
    for per_update in (1, 3):
        finish = answer(says(text, per_update=per_update), stop=("b",), min_tokens=min_tokens)
        assert finish.text == kept
        assert finish.reason == "stop"
        assert len(finish.token_ids) > min_tokens


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("abc\n"), max_size=16),
    stops=st.lists(st.text(st.sampled_from("abc\n"), min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 9),
)
def test_engine_and_front_end_agree_on_stops_and_least_tokens(
    text: str, stops: list[str], min_tokens: int
) -> None:
    """Against reading character by character, with stops not judged before the border."""
    ids = TOKENIZER.encode([Run(text, False)])
    border = len(TOKENIZER.decode(ids[:min_tokens], False))
    position = next(
        (
            end - max(map(len, ending))
            for end in range(border + 1, len(text) + 1)
            if (ending := [stop for stop in stops if text[:end].endswith(stop)])
        ),
        None,
    )
    port = FakePort(follow(ids, IM_END), watch=watch_factory(TOKENIZER))
    front = Frontend(port, TOKENIZER, ChatFormat.of(TOKENIZER), 512)
    sampling = Sampling(stop=tuple(stops), min_tokens=min_tokens, max_tokens=64)
    request = Request(segments=(Text("hi"),), sampling=sampling)

    async def streamed() -> tuple[str, Finish]:
        shown = ""
        async for delta in front.stream(request):
            shown += delta.text
            last = delta.finish
        assert last is not None
        return shown, last

    shown, finish = asyncio.run(streamed())
    assert shown == finish.text == text[:position]
    assert port.cancelled == []  # the engine has seen the same end
