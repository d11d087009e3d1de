"""Programs used inside programs, and programs run from unusual places."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import Overloaded, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.request import Request
from branchwork.lang.state import State


def last(prompt: str, request: Request) -> str:
    if prompt.endswith("!"):
        raise Overloaded("full")
    return prompt[-1].upper()


@program(temperature=0.7)
def ask(s: State, word: str) -> str:
    s += word + bw.gen("x")
    return str(s["x"])


@program
async def aask(s: State, word: str) -> str:
    s += word + bw.gen("x")
    return str(await s.get("x"))


def test_names_of_a_sub_program_are_the_callers_and_its_result_is_returned() -> None:
    @program
    def outer(s: State) -> None:
        assert ask(s, "a") == "A"
        assert s["x"] == "A"
        ask(s, "b")
        assert s["x"] == "B"

    state = outer.run(engine=MockClient(last))
    assert (state.text(), state.names()) == ("aAbB", ("x",))


def test_a_sub_program_speaks_inside_the_open_role() -> None:
    @program
    def outer(s: State) -> None:
        with s.user():
            ask(s, "a")
        with s.assistant():
            ask(s, "b")
            with pytest.raises(ProgramError, match="roles do not nest"):
                chat(s)

    @program
    def chat(s: State) -> None:
        s += bw.user("no")

    assert outer.run(engine=MockClient(last)).messages() == [
        {"role": "user", "content": "aA"},
        {"role": "assistant", "content": "bB"},
    ]


def test_an_error_in_a_sub_program_names_its_own_line() -> None:
    @program
    def bad(s: State) -> None:
        s += "a!" + bw.gen("bad")  # the line

    @program
    def outer(s: State) -> None:
        bad(s)
        s["bad"]

    with pytest.raises(ProgramError, match="full") as caught:
        outer.run(engine=MockClient(last))
    lines = Path(__file__).read_text().splitlines()
    name, _, number = caught.value.where.partition(":")
    assert name == Path(__file__).name
    assert lines[int(number) - 1].endswith("# the line")


def test_the_settings_of_the_program_that_is_run_hold() -> None:
    client = MockClient(last)

    @program(temperature=0.2)
    def outer(s: State) -> None:
        ask(s, "a")

    outer.run(engine=client)
    assert client.requests[0].sampling.temperature == 0.2


def test_sub_programs_run_side_by_side_in_branches() -> None:
    @program
    def outer(s: State) -> None:
        branches = s.fork(3)
        for i, twig in enumerate(branches):
            twig += str(i) + bw.gen("x")
            inner = twig.fork(2)
            for each in inner:
                each += "-" + bw.gen("y")
            inner.join()
        assert branches.join() == {"x": ["0", "1", "2"], "y": [["-", "-"]] * 3}

    outer.run(engine=MockClient(last))


async def test_an_async_sub_program_is_awaited() -> None:
    @program
    async def outer(s: State) -> list[object]:
        branches = s.fork(3)
        return list(await asyncio.gather(*(aask(t, str(i)) for i, t in enumerate(branches))))

    client = MockClient(last, delay=0.01)
    state = await outer.arun(engine=client)
    assert state.returned == ["0", "1", "2"]
    assert client.most_open == 3


def test_a_sub_program_inside_a_span_belongs_to_it() -> None:
    @program
    def outer(s: State) -> None:
        with s.span("thought"):
            ask(s, "a")
            ask(s, "b")

    assert outer.run(engine=MockClient(last))["thought"] == "aAbB"


# -- unusual places ---------------------------------------------------------------------------


def test_runs_in_many_threads_share_one_client() -> None:
    client = MockClient(last)
    found: dict[int, str] = {}

    def work(i: int) -> None:
        found[i] = ask.run(chr(97 + i), engine=client)["x"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {i: chr(65 + i) for i in range(8)}
    assert client.open_streams == 0


def test_runs_nest_three_deep() -> None:
    client = MockClient(last)

    @program
    def middle(s: State) -> str:
        return str(ask.run("a", engine=client)["x"]) + "".join(
            state["x"] for state in ask.run_batch([("b",), ("c",)], engine=client)
        )

    @program
    def outer(s: State) -> None:
        s.set("all", middle.run(engine=client).returned)

    assert outer.run(engine=client)["all"] == "ABC"


async def test_a_nested_run_inside_a_running_loop_and_an_async_body() -> None:
    client = MockClient(last)

    @program
    async def outer(s: State) -> str:
        await asyncio.sleep(0)
        return str(ask.run("a", engine=client)["x"])

    assert outer.run(engine=client).returned == "A"
    assert (await outer.arun(engine=client)).returned == "A"


async def test_run_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    for _ in range(3):
        ask.run("a", engine=MockClient(last))
    with pytest.raises(ProgramError):
        ask.run("a!", engine=MockClient(last))
    for _ in range(500):  # the thread says that it is over a moment before it is
        if threading.active_count() == before:
            break
        await asyncio.sleep(0.01)
    assert threading.active_count() == before


async def test_a_body_that_leaves_the_interpreter_says_so_from_a_running_loop() -> None:
    @program
    def p(s: State) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        p.run(engine=MockClient())
