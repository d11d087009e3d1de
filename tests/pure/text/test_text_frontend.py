"""The client over a scripted engine: text in, deltas and one finish out, state that only grows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import byte_tokenizer as bytes_
import chat_templates as shapes
import pytest
from byte_tokenizer import ENDOFTEXT, IM_END, IM_START, byte_tokenizer, chat_format, make
from fake_port import FakePort, Script, follow
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwork.backend.port import End, Rules, Update
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.stops import watch_factory
from branchwork.backend.text.tokenizer import Run, Tokenizer
from branchwork.lang.client import Client, complete
from branchwork.lang.errors import (
    Cancelled,
    EngineClosed,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
)
from branchwork.lang.request import (
    Delta,
    Finish,
    Request,
    RoleEnd,
    RoleStart,
    Segment,
    Text,
    Tokens,
)
from branchwork.lang.sampling import Sampling

ASK = (RoleStart("user"), Text("hi"), RoleEnd("user"), RoleStart("assistant"))


def client(port: FakePort, tokenizer: Tokenizer | None = None, context: int = 512) -> Frontend:
    tokenizer = tokenizer or byte_tokenizer()
    return Frontend(port, tokenizer, ChatFormat.of(tokenizer), context)


def says(text: str, end: int = IM_END, tokenizer: Tokenizer | None = None) -> Script:
    return follow((tokenizer or byte_tokenizer()).encode([Run(text, False)]), end)


def port_of(
    script: Script, tokenizer: Tokenizer | None = None, watched: bool = True, per_update: int = 1
) -> FakePort:
    watch = watch_factory(tokenizer or byte_tokenizer()) if watched else None
    return FakePort(script, watch=watch, per_update=per_update)


async def deltas_of(front: Client, request: Request) -> list[Delta]:
    return [delta async for delta in front.stream(request)]


def run(front: Client, request: Request) -> Finish:
    """One call; its deltas must add up to its finish."""
    deltas = asyncio.run(deltas_of(front, request))
    finish = deltas[-1].finish
    assert finish is not None
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert "".join(delta.text for delta in deltas) == finish.text
    return finish


def ask(segments: Sequence[Segment] = ASK, **sampling: object) -> Request:
    return Request(segments=tuple(segments), sampling=Sampling(**sampling))  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [IM_END, ENDOFTEXT])
def test_an_end_token_ends_the_value_and_is_not_kept(end: int) -> None:
    finish = run(client(port_of(says("hello", end))), ask())
    assert (finish.reason, finish.text, finish.stop, finish.tail) == ("stop", "hello", None, "")
    assert finish.kept == Tokens(tuple(b"hello"), (Text("hello"),))
    assert finish.token_ids == (*b"hello", end)
    assert finish.prompt.source == ASK
    assert finish.usage.completion_tokens == 6
    assert finish.usage.prompt_tokens == len(finish.prompt.ids)
    assert 0 < finish.usage.time_to_first_token <= finish.usage.seconds


def test_the_engine_gets_the_sampling_and_the_rendered_prompt() -> None:
    port = port_of(says("x"))
    request = Request(
        segments=ASK,
        sampling=Sampling(max_tokens=9, temperature=0.5, top_p=0.9, seed=7, stop=("q",)),
        namespace="n",
        id="mine",
    )
    run(client(port), request)
    job = port.jobs[0]
    assert (job.id, job.namespace, job.max_tokens) == ("mine", "n", 9)
    assert job.rules == Rules(temperature=0.5, top_p=0.9)
    assert (job.seed, job.stop, job.end_ids) == (7, ("q",), (IM_END, ENDOFTEXT))
    text = shapes.reference(bytes_.CHATML, [("user", "hi")], opens=True)
    assert byte_tokenizer().decode(port.prompts[0], False) == text


def test_without_a_seed_every_call_draws_its_own() -> None:
    port = port_of(says("x"))
    front = client(port)
    for _ in range(3):
        run(front, ask())
    seeds = {job.seed for job in port.jobs}
    assert len(seeds) == len({job.id for job in port.jobs}) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_ignore_eos_draws_past_end_tokens_and_keeps_them() -> None:
    finish = run(client(port_of(says("a"))), ask(ignore_eos=True, max_tokens=3))
    assert (finish.reason, finish.text) == ("length", "a")
    assert finish.kept.ids == (ord("a"), IM_END, IM_END)


def test_a_value_cut_within_a_character_shows_it_broken_at_the_end_only() -> None:
    finish = run(client(port_of(says("a😀"))), ask(max_tokens=3))
    assert (finish.reason, finish.text) == ("length", "a\ufffd")
    assert finish.kept.ids == (ord("a"), *"😀".encode()[:2])


def test_max_tokens_0_prefills_and_draws_nothing() -> None:
    finish = run(client(port_of(says("a"))), ask(max_tokens=0))
    assert (finish.text, finish.kept.ids, finish.reason) == ("", (), "length")


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    ("stop", "text"), [("Lon", " "), ("ond", " L"), ("n i", " Londo"), ("big", " London is ")]
)
def test_a_stop_string_is_cut_out_wherever_tokens_end(stop: str, text: str, watched: bool) -> None:
    tokenizer = make(words=(" London", " is big"))
    port = port_of(says(" London is big and old", tokenizer=tokenizer), tokenizer, watched)
    finish = run(client(port, tokenizer), ask(stop=(stop,)))
    assert (finish.reason, finish.stop, finish.text) == ("stop", stop, text)
    assert tokenizer.decode(finish.kept.ids) + finish.tail == text
    assert finish.kept.source == (Text(tokenizer.decode(finish.kept.ids)),)
    assert not port.live


WORDS = make(words=("ab", "bc", "cab", "é€"))


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("abcé€"), max_size=12),
    stop=st.lists(st.text(st.sampled_from("abcé"), min_size=1, max_size=3), max_size=2),
    watched=st.booleans(),
    per_update=st.integers(1, 5),
)
def test_stops_and_kept_ids_do_not_depend_on_who_judges_or_on_batching(
    text: str, stop: list[str], watched: bool, per_update: int
) -> None:
    port = port_of(says(text, tokenizer=WORDS), WORDS, watched, per_update)
    finish = run(client(port, WORDS), ask(stop=tuple(stop)))
    base = run(client(port_of(says(text, tokenizer=WORDS), WORDS), WORDS), ask(stop=tuple(stop)))
    assert (finish.text, finish.kept, finish.tail) == (base.text, base.kept, base.tail)
    assert text.startswith(finish.text)
    assert (finish.stop is None) == (not any(s in text for s in stop))
    assert not any(s in finish.text for s in stop)


def test_logprobs_come_for_drawn_tokens_and_for_the_prompt_from_where_asked() -> None:
    port = port_of(says("ab"))
    request = Request(segments=(Text("xyz"),), sampling=Sampling(logprobs=True), logprobs_from=0)
    finish = run(client(port), request)
    assert finish.logprobs is not None
    assert len(finish.logprobs) == len(finish.token_ids) == 3
    scored = [port.score(list(b"xyz")[:n], b"xyz"[n]) for n in (1, 2)]
    assert finish.prompt_logprobs == (None, *scored)
    later = run(client(port), Request(segments=(Text("xyz"),), logprobs_from=2))
    assert later.prompt_logprobs == (scored[1],)
    assert later.logprobs is None
    assert run(client(port), ask()).prompt_logprobs is None


@pytest.mark.parametrize("first", [-1, 4])
def test_logprobs_from_outside_the_prompt_is_refused(first: int) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to the prompt's 3 tokens"):
        run(client(FakePort()), Request(segments=(Text("xyz"),), logprobs_from=first))


def test_three_turns_extend_each_other_token_for_token() -> None:
    tokenizer = make(words=("the", " the", "he", "\n\n", "assistant\n"))
    segments: list[Segment] = []
    prompts: list[list[int]] = []
    before: list[int] = []
    for turn, answer in enumerate(["thethe", "then\n\n", "he the"]):
        port = port_of(follow(list(answer.encode()), IM_END))  # spelt in bytes, not as encoded
        segments += [RoleStart("user"), Text(f"{turn} the\n"), RoleEnd("user")]
        segments += [RoleStart("assistant"), Text("the")]
        finish = run(client(port, tokenizer), ask(segments))
        prompts.append([*finish.prompt.ids])
        segments = [finish.prompt, finish.kept, RoleEnd("assistant")]
        grown = [*finish.prompt.ids, *finish.kept.ids]
        assert grown[-len(answer) :] == list(answer.encode())
        if turn:
            assert prompts[turn][: len(before)] == before
            assert prompts[turn][len(before)] == IM_END  # rendered once, not drawn
        before = grown
    assert prompts[2].count(IM_START) == 1 + 6
    assert prompts[2].count(IM_END) == 1 + 5


def test_text_after_a_value_goes_on_in_the_same_message() -> None:
    port = port_of(says("x"))
    front = client(port)
    first = run(front, ask())
    rest = (first.prompt, first.kept, Text(" and"), RoleEnd("assistant"))
    ids = front.prepare(Request(segments=rest)).prompt.ids
    expected = [*first.prompt.ids, *b"x and", IM_END, *b"\n"]
    assert ids == tuple(expected)


def test_the_kept_rest_of_a_cut_token_is_tokenised_with_what_follows() -> None:
    tokenizer = make(words=(" London", " Loud"))
    front = client(port_of(says(" London", tokenizer=tokenizer), tokenizer), tokenizer)
    finish = run(front, ask(stop=("ndon",)))
    assert (finish.kept.ids, finish.tail) == ((), " Lo")
    more = Request(segments=(finish.prompt, finish.kept, Text(finish.tail), Text("ud")))
    assert front.prepare(more).prompt.ids[-1] == tokenizer.token_id("ĠLoud")


def test_closing_the_stream_cancels_the_job() -> None:
    port = port_of(says("hello"))

    async def read_one() -> None:
        stream = client(port).stream(ask())
        assert (await anext(stream)).text == "h"
        assert port.live
        await stream.aclose()  # type: ignore[attr-defined]
        assert not port.live

    asyncio.run(read_one())
    assert port.cancelled == [port.jobs[0].id]


def test_cancelling_the_reading_task_cancels_the_job() -> None:
    port = port_of(lambda ids: ord("a"))

    async def main() -> None:
        task = asyncio.create_task(complete(client(port), ask(max_tokens=400)))
        while not port.live:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not port.live

    asyncio.run(main())


def test_errors_of_the_engine_arrive_as_they_were_raised() -> None:
    port = FakePort(fail=Overloaded("the queue is full"))
    for request in (ask(), Request(segments=ASK, choices=("a", "b"))):
        with pytest.raises(Overloaded, match="the queue is full"):
            run(client(port), request)


def test_a_closed_client_refuses_calls() -> None:
    front = client(port_of(says("x")))

    async def main() -> None:
        await front.aclose()
        await front.aclose()
        with pytest.raises(EngineClosed):
            await complete(front, ask())

    asyncio.run(main())


def test_a_job_cancelled_by_the_engine_raises() -> None:
    class Cancelling(FakePort):
        def _updates(self, job, prompt, cached):  # type: ignore[no-untyped-def]
            yield Update(id=job.id, end=End(reason="cancelled"))

    with pytest.raises(Cancelled):
        run(client(Cancelling()), ask())


@pytest.mark.parametrize(
    "request_", [ask(()), ask((Text(""),)), Request(segments=(), choices=("a",))]
)
def test_an_empty_prompt_is_refused_with_a_way_out(request_: Request) -> None:
    with pytest.raises(InvalidRequest, match=r"empty prompt.*add some text"):
        run(client(FakePort()), request_)


def test_an_empty_prompt_is_the_start_token_alone_where_there_is_one() -> None:
    port = port_of(says("x"))
    tokenizer = make(adds_bos=True)
    finish = run(client(port, tokenizer), ask(()))
    assert finish.prompt.ids == (IM_START,)
    assert finish.text == "x"


def test_a_prompt_over_the_context_is_refused_with_both_counts() -> None:
    with pytest.raises(PromptTooLong, match=r"has 8 tokens.*context is 8 tokens"):
        run(client(FakePort(), context=8), ask((Text("12345678"),)))
    with pytest.raises(PromptTooLong, match="2 more for the longest choice"):
        run(
            client(FakePort(), context=8), Request(segments=(Text("1234567"),), choices=("ab", "c"))
        )


def test_max_tokens_is_cut_to_the_room_left() -> None:
    port = port_of(lambda ids: ord("a"))
    finish = run(client(port, context=8), ask((Text("12345"),), max_tokens=100))
    assert (finish.reason, finish.text, port.jobs[0].max_tokens) == ("length", "aaa", 3)


def test_the_front_end_is_a_client() -> None:
    front: Client = Frontend(FakePort(), byte_tokenizer(), chat_format(), 8)
    assert front is not None
