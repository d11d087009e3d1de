"""Mistakes and failures are raised once, typed, and name the program line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.calls import CutWarning
from branchwork.lang.errors import (
    CallTimeout,
    Cancelled,
    EngineClosed,
    InvalidRequest,
    Overloaded,
    ProgramError,
)
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.request import Delta, Request
from branchwork.lang.state import State


def fails(prompt: str, request: Request) -> str:
    if prompt.endswith("!"):
        raise Overloaded("the queue is full")
    return "ok"


def line_of(mark: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return f"{Path(__file__).name}:{number}"


def test_a_failed_call_is_raised_at_the_first_read_and_names_its_own_line() -> None:
    reached = []

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("fine")
        s += "b!" + bw.gen("bad")  # line: bad
        s += "c" + bw.gen("after")
        assert s["fine"] == "ok"
        reached.append("fine")
        s["after"]
        reached.append("after")

    client = MockClient(fails)
    with pytest.raises(ProgramError, match="the queue is full") as caught:
        p.run(engine=client)
    assert reached == ["fine"]
    assert caught.value.where == line_of("line: bad")
    assert caught.value.call == "bad"
    assert isinstance(caught.value.__cause__, Overloaded)
    assert (client.n_calls, client.open_streams) == (2, 0)


@pytest.mark.parametrize("reads", [True, False])
def test_the_roots_failure_is_raised_at_the_end_even_if_the_read_was_caught(reads: bool) -> None:
    @program
    def p(s: State) -> None:
        s += "b!" + bw.gen("bad")
        if reads:
            with pytest.raises(ProgramError):
                s["bad"]

    with pytest.raises(ProgramError) as caught:
        p.run(engine=MockClient(fails))
    assert caught.value.call == "bad"


def test_an_unread_branch_failure_is_raised_at_the_end_with_the_others_noted() -> None:
    @program
    def p(s: State) -> None:
        for i, twig in enumerate(s.fork(3)):
            twig += ("b" if i == 1 else "b!") + bw.gen("x")

    with pytest.raises(ProgramError) as caught:
        p.run(engine=MockClient(fails))
    assert caught.value.call == "x[0]"
    (note,) = caught.value.__notes__
    assert "x[2]" in note


def test_a_branch_failure_the_program_handles_at_join_is_not_raised_again() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(2)
        for i, twig in enumerate(branches):
            twig += ("b" if i else "b!") + bw.gen("x")
        with pytest.raises(ProgramError, match=r"x\[0\]"):
            branches.join()
        s += branches[1]["x"]

    assert p.run(engine=MockClient(fails)).text() == "ok"


def test_branches_of_a_failed_parent_fail_with_its_error() -> None:
    @program
    def p(s: State) -> None:
        s += "b!" + bw.gen("bad")
        branches = s.fork(2)
        branches += "c" + bw.gen("x")
        branches.join()

    with pytest.raises(ProgramError) as caught:
        p.run(engine=MockClient(fails))
    assert caught.value.call == "bad"


def test_a_bodys_own_exception_comes_out_as_it_is_and_ends_pending_calls() -> None:
    client = MockClient(delay=30)
    mistake = KeyError("mine")

    @program
    async def p(s: State) -> None:
        s += "a" + bw.gen("x")
        while not client.open_streams:
            await asyncio.sleep(0)
        raise mistake

    with pytest.raises(KeyError) as caught:
        p.run(engine=client)
    assert caught.value is mistake
    assert (client.open_streams, client.n_cancelled) == (0, 1)


def test_a_failure_hidden_by_a_bodys_exception_is_noted_on_it() -> None:
    @program
    def p(s: State) -> None:
        (twig,) = s.fork(1)
        twig += "b!" + bw.gen("hidden")
        s += "a" + bw.gen("x") + "b" + bw.gen("y")
        s["y"]
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        p.run(engine=MockClient(fails))
    assert "hidden" in caught.value.__notes__[0]


def test_an_unknown_name_says_which_names_exist_every_time() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x") + bw.gen("y")
        for _ in range(2):
            with pytest.raises(ProgramError, match=r"nothing is called 'z'.*'x', 'y'") as caught:
                s["z"]  # line: unknown
            assert caught.value.where == line_of("line: unknown")
        s["later"]
        s += "b" + bw.gen("later")

    with pytest.raises(ProgramError, match="'later'"):
        p.run(engine=MockClient())


def test_nested_roles_are_refused_on_their_line() -> None:
    @program
    def p(s: State) -> None:
        with s.assistant():
            s += bw.user("no")  # line: nested

    with pytest.raises(ProgramError, match="roles do not nest") as caught:
        p.run(engine=MockClient())
    assert caught.value.where == line_of("line: nested")
    with pytest.raises(ProgramError, match="roles do not nest") as caught:
        bw.user("a" + bw.system("b"))  # line: inner
    assert caught.value.where == line_of("line: inner")


def test_closing_what_is_not_open_is_refused() -> None:
    @program
    def p(s: State) -> None:
        s.end()

    with pytest.raises(ProgramError, match="no role is open"):
        p.run(engine=MockClient())


@pytest.mark.parametrize("value", [None, 5, ["a"]])
def test_only_text_and_expressions_can_be_appended(value: object) -> None:
    @program
    def p(s: State) -> None:
        s += value  # type: ignore[arg-type]

    with pytest.raises(ProgramError, match="expected text or an expression"):
        p.run(engine=MockClient())


def test_an_expression_in_an_f_string_is_refused() -> None:
    with pytest.raises(ProgramError, match="f-string"):
        f"{bw.gen('x')}"


def test_only_text_can_be_referred_to() -> None:
    @program
    def p(s: State) -> None:
        s.set("x", [1])
        s += bw.ref("x")

    with pytest.raises(ProgramError, match="only text"):
        p.run(engine=MockClient())


def test_a_call_over_its_time_limit_ends_with_call_timeout() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")

    client = MockClient(delay=30)
    with pytest.raises(ProgramError, match=r"longer than 0\.05 s") as caught:
        p.using(timeout=0.05).run(engine=client)
    assert isinstance(caught.value.__cause__, CallTimeout)
    assert client.open_streams == 0


def test_a_client_that_cancels_a_call_fails_that_call() -> None:
    class Cancels(MockClient):
        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            raise asyncio.CancelledError
            yield

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")

    with pytest.raises(ProgramError) as caught:
        p.run(engine=Cancels())
    assert isinstance(caught.value.__cause__, Cancelled)


def test_a_client_that_never_finishes_a_call_fails_it() -> None:
    class Ends(MockClient):
        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            yield Delta(text="half")

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")

    with pytest.raises(ProgramError) as caught:
        p.run(engine=Ends())
    assert isinstance(caught.value.__cause__, EngineClosed)


def test_nothing_can_be_appended_after_the_run() -> None:
    @program
    def p(s: State) -> None:
        s += "a"

    state = p.run(engine=MockClient())
    with pytest.raises(ProgramError, match="this run is over"):
        state += "b"
    with pytest.raises(ProgramError, match="this run is over"):
        state.fork(2)


def test_what_a_value_is_not_is_said() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        s.set("y", 1)

    state = p.run(engine=MockClient())
    with pytest.raises(ProgramError, match="not made by a select"):
        state.scores("x")
    with pytest.raises(ProgramError, match="no call made"):
        state.meta("y")
    with pytest.raises(ProgramError, match="no text"):
        state.raw("y")


def test_being_cut_by_the_default_length_warns_once_a_call_site() -> None:
    client = MockClient(lambda prompt, request: "long " * 100)

    @program
    def p(s: State) -> None:
        for _ in range(3):
            s += "a" + bw.gen("x")  # line: cut

    with pytest.warns(CutWarning, match="default of 256 tokens") as caught:
        p.run(engine=client)
        p.run(engine=client)
    assert len(caught) == 1
    assert f"{Path(caught[0].filename).name}:{caught[0].lineno}" == line_of("line: cut")


def test_a_chosen_length_does_not_warn() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x", max_tokens=3) + bw.gen("y")

    client = MockClient(lambda prompt, request: "long " * 100)
    state = p.using(max_tokens=5).run(engine=client)
    assert (state["x"], state["y"]) == ("lon", "long ")
    assert state.meta("x").finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: None, "first parameter"),
        (lambda s, engine: None, "taken by run"),
    ],
)
def test_a_function_that_cannot_be_a_program_is_refused(body: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        program(body)  # type: ignore[call-overload]


def test_cancelling_a_branch_that_has_failed_drops_its_failure() -> None:
    @program
    def p(s: State) -> None:
        (twig,) = s.fork(1)
        twig += "b!" + bw.gen("dropped")
        s += "a" + bw.gen("x") + "b" + bw.gen("y")
        assert s["y"] == "ok"
        assert twig._branch.error is not None
        twig.cancel()

    assert p.run(engine=MockClient(fails))["x"] == "ok"
