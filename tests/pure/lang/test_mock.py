"""The scripted client keeps the Client contract, and `explain` reports what it says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwork.lang import dsl as bw
from branchwork.lang.client import Client, complete
from branchwork.lang.errors import EngineClosed, InvalidRequest, Overloaded
from branchwork.lang.explain import savings
from branchwork.lang.mock import END_ID, MockClient, cut
from branchwork.lang.program import program
from branchwork.lang.request import Request, RoleEnd, RoleStart, Text
from branchwork.lang.sampling import Sampling
from branchwork.lang.state import State


def ask(text: str, **options: Any) -> Request:
    return Request(segments=(Text(text),), sampling=Sampling(**options))


def test_the_mock_is_a_client() -> None:
    client: Client = MockClient()
    assert client


@pytest.mark.parametrize("size", [None, 1, 4])
async def test_deltas_join_to_the_text_and_the_last_has_the_finish(size: int | None) -> None:
    client = MockClient(lambda prompt, request: "hello there", delta_tokens=size)
    deltas = [delta async for delta in client.stream(ask("a"))]
    assert "".join(delta.text for delta in deltas) == "hello there"
    assert [i for delta in deltas for i in delta.ids] == [ord(c) for c in "hello there"]
    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


async def test_prompt_and_kept_continue_the_state() -> None:
    client = MockClient(lambda prompt, request: "yes")
    marks = (RoleStart("user"), Text("hi"), RoleEnd("user"), RoleStart("assistant"))
    first = await complete(client, Request(segments=marks))
    second = await complete(client, Request(segments=(first.prompt, first.kept, Text("!"))))
    assert second.prompt.ids == (*first.prompt.ids, *first.kept.ids, ord("!"))
    assert second.prompt.source == (*marks, Text("yes"), Text("!"))
    assert first.token_ids == (*map(ord, "yes"), END_ID)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (((), 20), ("hello world", "stop", None, 12)),
        (((), 11), ("hello world", "length", None, 11)),
        (((), 0), ("", "length", None, 0)),
        ((("o",), 20), ("hell", "stop", "o", 5)),
        ((("wor", "lo"), 20), ("hel", "stop", "lo", 5)),
        ((("lo", "llo"), 20), ("he", "stop", "llo", 5)),
        ((("world",), 8), ("hello wo", "length", None, 8)),
    ],
)
def test_text_is_cut_at_the_first_stop_or_the_limit(limits: Any, expected: Any) -> None:
    assert cut("hello world", *limits) == expected


@given(st.text("ab ", max_size=12), st.lists(st.text("ab", min_size=1)), st.integers(0, 14))
def test_a_kept_text_never_holds_a_stop_string(text: str, stops: list[str], limit: int) -> None:
    kept, reason, stop, drawn = cut(text, tuple(stops), limit)
    assert text.startswith(kept)
    assert not any(each in kept for each in stops)
    assert len(kept) <= drawn <= limit
    assert (stop is None) or reason == "stop"


async def test_a_mapping_answers_by_how_the_prompt_ends() -> None:
    script = {"Q:": "short", "a Q:": "long", "E:": Overloaded("full")}
    client = MockClient(script)
    assert (await complete(client, ask("b Q:"))).text == "short"
    assert (await complete(client, ask("a Q:"))).text == "long"
    assert (await complete(client, ask("else"))).text != ""
    with pytest.raises(Overloaded):
        await complete(client, ask("E:"))
    assert client.open_streams == 0
    assert client.n_cancelled == 0


async def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        await complete(MockClient(), Request(segments=()))


async def test_closing_a_stream_midway_is_a_cancel() -> None:
    client = MockClient(lambda prompt, request: "hello", delta_tokens=1)
    stream = client.stream(ask("a"))
    await anext(stream)
    assert client.open_streams == 1
    await stream.aclose()
    assert (client.open_streams, client.n_cancelled) == (0, 1)


async def test_the_cache_reports_what_an_earlier_call_shares() -> None:
    client = MockClient(lambda prompt, request: "yes", cache=True)
    for prompt, cached in [("abcd", 0), ("abcd", 3), ("abxx", 2), ("abcdyes!", 7)]:
        usage = (await complete(client, ask(prompt))).usage
        assert (usage.prompt_tokens, usage.cached_tokens) == (len(prompt), cached)
    other = Request(segments=(Text("abcd"),), namespace="other")
    assert (await complete(client, other)).usage.cached_tokens == 0


def test_select_picks_by_method_and_reports_all_scores() -> None:
    logprobs = {"no": (-1.0, -1.0), "maybe": (-0.5,) * 5}
    client = MockClient(scorer=lambda prompt, choice: logprobs[choice])

    @program
    def p(s: State) -> None:
        s += "a" + bw.select("total", ["no", "maybe"])
        s += "b" + bw.select("mean", ["no", "maybe"], method="token_mean")

    state = p.run(engine=client)
    assert (state["total"], state["mean"]) == ("no", "maybe")
    assert state.text() == "anobmaybe"
    scores = state.scores("total")
    assert list(scores) == ["no", "maybe"]
    assert (scores["no"].total, scores["maybe"].token_mean) == (-2.0, -0.5)


def test_meta_tells_what_a_call_cost_and_how_it_ended() -> None:
    client = MockClient(lambda prompt, request: "hello\nthere", cache=True)

    @program
    def p(s: State) -> None:
        s += "abc" + bw.gen("x", stop="\n", logprobs=True) + bw.gen("y", max_tokens=2)

    state = p.run(engine=client)
    meta = state.meta("x")
    assert (state["x"], state.raw("x"), meta.finish_reason) == ("hello", "hello", "stop")
    assert (meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens) == (3, 0, 6)
    assert meta.token_ids == tuple(map(ord, "hello\n"))
    assert meta.logprobs is not None and len(meta.logprobs) == 6
    assert (state.meta("y").cached_tokens, state.meta("y").finish_reason) == (7, "length")


def test_explain_lists_every_call_and_sums_up_what_was_shared() -> None:
    client = MockClient(lambda prompt, request: "out", cache=True)

    @program
    def p(s: State) -> None:
        s += "a shared prefix" + bw.gen("start")
        branches = s.fork(2)
        branches += " then" + bw.gen("draft")
        inner = branches[1].fork(1)
        inner += "." + bw.gen()
        branches.join()
        s += " end" + bw.select("verdict", ["good", "bad"])

    state = p.run(engine=client)
    report = state.explain()
    calls = ["start", "draft[0]", "draft[1]", "gen[1][0]", "verdict"]
    assert [each.call for each in report.records] == calls
    assert [each.cached_tokens for each in report.records] == [0, 18, 22, 26, 19]
    assert all(each.where.startswith("test_mock.py:") for each in report.records)
    assert report.savings == savings(report.records)
    assert report.savings.cached_tokens == 85
    table = str(report).splitlines()
    assert table[0].split()[:3] == ["call", "where", "prompt"]
    assert len({len(line.rstrip()) for line in table[1:5]}) == 1
    assert table[-1].startswith("sharing saved 85 of ")


async def test_closing_the_client_ends_a_call_that_waits() -> None:
    client = MockClient(delay=30)
    call = asyncio.create_task(complete(client, ask("a")))
    while not client.open_streams:
        await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(EngineClosed):
        await asyncio.wait_for(call, 5)
    assert client.open_streams == 0
