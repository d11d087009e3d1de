"""Streaming a run: what comes, in which order, and what is left when the listener leaves."""

from __future__ import annotations

import asyncio
import gc
import threading

import naive
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interrupts import interrupt_when_busy
from strategies import program_bodies

from branchwork.lang import dsl as bw
from branchwork.lang.branch import subtree
from branchwork.lang.errors import InvalidRequest, Overloaded, ProgramError
from branchwork.lang.feed import Feed, TextDelta
from branchwork.lang.mock import MockClient
from branchwork.lang.place import Place
from branchwork.lang.program import program
from branchwork.lang.request import Request
from branchwork.lang.state import State


def last(prompt: str, request: Request) -> str:
    if prompt.endswith("!"):
        raise Overloaded("the queue is full")
    return prompt[-1].upper() * 3


@program
def two(s: State) -> None:
    s += "a" + bw.gen("x") + "b" + bw.gen("y")


@program
def forked(s: State) -> None:
    s += "a" + bw.gen("x")
    branches = s.fork(2)
    for i, twig in enumerate(branches):
        twig += str(i) + bw.gen("y")
    branches.join()
    s += "z" + bw.gen("end")


@program
def only_forks(s: State) -> None:
    for twig in s.fork(2):
        twig += "a" + bw.gen("y")


def by_char(**options: float) -> MockClient:
    return MockClient(last, delta_tokens=1, **options)  # type: ignore[arg-type]


def joined(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_text_comes_in_pieces_that_name_their_call() -> None:
    stream = two.stream(engine=by_char())
    deltas = list(stream)
    assert [(delta.name, delta.text) for delta in deltas if delta.name is None] == [
        (None, "a"),
        (None, "b"),
    ]
    assert joined([delta for delta in deltas if delta.name == "x"]) == "AAA"
    assert stream.state is not None
    assert joined(deltas) == stream.state.text() == "aAAAbBBB"


async def test_an_async_listener_hears_every_delta_while_the_call_runs() -> None:
    client = by_char()
    heard = []
    async for delta in two.stream(engine=client):
        heard.append((delta.text, client.open_streams))
        await asyncio.sleep(0)
    assert joined([TextDelta(text=text) for text, _ in heard]) == "aAAAbBBB"
    assert ("A", 1) in heard
    assert client.open_streams == 0


async def test_one_variable_is_heard_alone() -> None:
    deltas = [delta async for delta in two.stream(engine=by_char(), var="y")]
    assert joined(deltas) == "BBB"
    assert {delta.name for delta in deltas} == {"y"}


def test_a_select_and_a_span_come_as_one_variable_too() -> None:
    @program
    def p(s: State) -> None:
        with s.span("both"):
            s += "a" + bw.select("x", ["yes", "no"]) + "b"

    (span,) = p.stream(engine=by_char(), var="both")
    choice = joined(list(p.stream(engine=by_char(), var="x")))
    assert choice in ("yes", "no")
    assert span.text == f"a{choice}b"
    whole = p.stream(engine=by_char())
    text = joined(list(whole))
    assert whole.state is not None
    assert text == whole.state["both"] == whole.state.text()


def test_roles_come_as_text_shows_them() -> None:
    @program
    def p(s: State) -> None:
        s += bw.user("hi") + bw.assistant(bw.gen("x"))

    stream = p.stream(engine=by_char())
    text = joined(list(stream))
    assert stream.state is not None
    assert text == stream.state.text() == "user: hi\nassistant: >>>\n"


def test_forks_are_heard_only_if_asked_for_and_tell_their_branch() -> None:
    plain = list(forked.stream(engine=by_char()))
    assert joined(plain) == "aAAAzZZZ"
    assert {delta.branch for delta in plain} == {()}
    deltas = list(forked.stream(engine=by_char(), branches=True))
    texts = dict.fromkeys([(), (0, 0), (0, 1)], "")
    for delta in deltas:
        texts[delta.branch] += delta.text
    assert texts == {(): "aAAAzZZZ", (0, 0): "0000", (0, 1): "1111"}
    heard = [delta.branch for delta in forked.stream(engine=by_char(), var="y", branches=True)]
    assert set(heard) == {(0, 0), (0, 1)}


def test_a_variable_nobody_made_is_an_error_at_the_end() -> None:
    with pytest.raises(ProgramError, match=r"'z' was made.*'x', 'y'; branches=True"):
        list(two.stream(engine=by_char(), var="z"))
    with pytest.raises(ProgramError, match="'y' was made"):
        list(only_forks.stream(engine=by_char(), var="y"))


def test_an_empty_text_is_no_error() -> None:
    assert list(two.stream(engine=MockClient(lambda prompt, request: ""), var="x")) == []


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=program_bodies(flags=(False, True)), size=st.sampled_from([None, 1, 3]))
def test_deltas_of_a_branch_join_to_what_it_said(body: naive.Body, size: int | None) -> None:
    made, states = naive.program_of(body)
    client = MockClient(naive.script, delta_tokens=size)

    async def listen(branches: bool) -> tuple[list[TextDelta], str]:
        states.clear()
        stream = made.stream(engine=client, branches=branches)
        deltas = [delta async for delta in stream]
        assert stream.state is not None
        return deltas, stream.state.text()

    deltas, text = asyncio.run(listen(False))
    assert joined(deltas) == text
    deltas, text = asyncio.run(listen(True))
    assert joined([delta for delta in deltas if not delta.branch]) == text
    for branch in subtree(states[0]._branch):
        if not branch.cancelled:
            own = joined([delta for delta in deltas if delta.branch == branch.place.path()])
            said = next(s for s in states if s._branch is branch).text()
            assert said.endswith(own)
    assert client.open_streams == 0


# -- errors and leaving early -----------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
def test_a_failed_call_is_raised_after_what_came_before_it(plain: bool) -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x") + "b!" + bw.gen("bad")

    client = by_char()
    heard = []

    async def listen() -> None:
        async for delta in p.stream(engine=client):
            heard.append(delta)

    with pytest.raises(ProgramError, match="the queue is full") as caught:
        if plain:
            for delta in p.stream(engine=client):
                heard.append(delta)
        else:
            asyncio.run(listen())
    assert caught.value.call == "bad"
    assert joined(heard) == "aAAAb!"
    assert client.open_streams == 0


def test_a_bodys_own_exception_comes_out_of_the_loop() -> None:
    @program
    def p(s: State) -> None:
        s += "a"
        raise KeyError("mine")

    heard = []
    with pytest.raises(KeyError, match="mine"):
        for delta in p.stream(engine=MockClient()):
            heard.append(delta.text)
    assert heard == ["a"]


def test_a_body_that_leaves_the_interpreter_ends_the_loop() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        if s["x"]:
            raise SystemExit(3)

    client = by_char()
    with pytest.raises(SystemExit):
        list(p.stream(engine=client))
    assert client.open_streams == 0


@program
def endless(s: State) -> None:
    for i in range(10_000):
        s += f"{i}" + bw.gen("x")
        s["x"]


def test_leaving_a_plain_loop_cancels_and_frees() -> None:
    client = by_char()
    before = threading.active_count()
    for delta in endless.stream(engine=client):
        if delta.name == "x":
            break
    assert client.open_streams == 0
    assert client.n_calls < 1000
    for _ in range(500):  # the thread says that it is over a moment before it is
        if threading.active_count() == before:
            break
        threading.Event().wait(0.01)
    assert threading.active_count() == before


async def test_leaving_an_async_loop_cancels_and_frees() -> None:
    client = MockClient(last, delta_tokens=1, delay=0.001)
    async for delta in endless.stream(engine=client):
        if delta.name == "x":
            break
    for _ in range(20):  # the loop closes the dropped iterator in a task of its own
        await asyncio.sleep(0)
    assert client.open_streams == 0


async def test_closing_ends_the_run_before_it_returns() -> None:
    client = MockClient(last, delay=30)
    async with endless.stream(engine=client) as stream:
        heard = []
        async for delta in stream:
            heard.append(delta.text)
            while not client.open_streams:
                await asyncio.sleep(0)
            await stream.aclose()
            assert (client.open_streams, client.n_cancelled) == (0, 1)
    assert heard == ["0"]


def test_closing_a_plain_stream_frees_while_it_is_held() -> None:
    client = by_char(delay=0.001)
    with endless.stream(engine=client) as stream:
        deltas = iter(stream)
        while next(deltas).name != "x":
            pass
    assert client.open_streams == 0
    assert list(deltas) == []
    with pytest.raises(InvalidRequest, match="make a new one"):
        iter(stream)


def test_ctrl_c_in_a_plain_loop_cancels_and_frees() -> None:
    client = MockClient(last, delay=30)
    heard = []
    with interrupt_when_busy(client), pytest.raises(KeyboardInterrupt):
        for delta in endless.stream(engine=client):
            heard.append(delta.text)
    assert heard in ([], ["0"])  # the key may be faster than the first delta
    assert (client.open_streams, client.n_cancelled) == (0, 1)


async def test_cancelling_the_listener_cancels_the_run() -> None:
    client = MockClient(last, delay=30)

    async def listen() -> None:
        async for _ in endless.stream(engine=client):
            pass

    task = asyncio.create_task(listen())
    while not client.open_streams:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.open_streams, client.n_cancelled) == (0, 1)


def test_nothing_runs_before_the_first_step_and_only_once() -> None:
    client = by_char()
    stream = two.stream(engine=client)
    assert client.n_calls == 0
    assert joined(list(stream)) == "aAAAbBBB"
    with pytest.raises(InvalidRequest, match="make a new one"):
        list(stream)
    closed = two.stream(engine=client)
    closed.close()
    with pytest.raises(InvalidRequest, match="make a new one"):
        list(closed)
    del stream, closed
    gc.collect()  # a stream that never began leaves nothing behind to warn about
    assert client.n_calls == 2


def test_mistakes_are_raised_where_the_stream_is_made() -> None:
    with pytest.raises(InvalidRequest, match="two"):
        two.stream("too much", engine=MockClient())

    @program
    def taken(s: State, var: str) -> None:
        pass

    with pytest.raises(InvalidRequest, match="parameter name 'var'"):
        taken.stream("x", engine=MockClient())
    assert taken.run("x", engine=MockClient()).text() == ""


# -- where it runs ----------------------------------------------------------------------------


async def test_a_plain_loop_works_inside_a_running_loop() -> None:
    assert joined(list(two.stream(engine=by_char()))) == "aAAAbBBB"


def test_a_plain_loop_in_a_body_does_not_hold_up_its_neighbours() -> None:
    client = MockClient(last, delta_tokens=1, delay=0.01)

    @program
    def outer(s: State) -> None:
        s.set("inner", joined(list(two.stream(engine=client))))

    states = outer.run_batch([{}] * 4, engine=client)
    assert [state["inner"] for state in states] == ["aAAAbBBB"] * 4
    assert client.most_open == 4


def test_a_body_that_leaves_its_loop_frees_the_inner_run() -> None:
    client = by_char()

    @program
    def outer(s: State) -> None:
        for delta in endless.stream(engine=client):
            if delta.name == "x":
                break
        s.set("open", client.open_streams)

    assert outer.run(engine=client)["open"] == 0
    assert client.n_calls < 1000


def test_the_run_goes_on_while_a_plain_listener_is_busy() -> None:
    client = by_char()
    stream = iter(two.stream(engine=client))
    assert next(stream).text == "a"
    for _ in range(500):
        if client.n_calls == 2 and not client.open_streams:
            break
        threading.Event().wait(0.01)
    assert client.n_calls == 2
    assert [delta.text for delta in stream] == ["AAA", "b", "BBB"]


async def test_a_feed_hands_out_what_one_call_said_in_one_piece() -> None:
    feed = Feed()
    x = feed.ear(Place(), "x")
    y = feed.ear(Place(), "y")
    assert x is not None and y is not None
    for hear, text in [(x, "a"), (x, "b"), (y, "c"), (x, "d"), (x, "")]:
        hear(text)
    assert await feed.take() == TextDelta(text="abd", name="x")
    x("e")
    feed.end()
    assert [await feed.take() for _ in range(3)] == [
        TextDelta(text="c", name="y"),
        TextDelta(text="e", name="x"),
        None,
    ]
