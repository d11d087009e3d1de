"""Spans: text that was said between two points, bound to a name."""

from __future__ import annotations

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import Overloaded, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import Program, program
from branchwork.lang.request import Request
from branchwork.lang.state import State


def last(prompt: str, request: Request) -> str:
    if prompt.endswith("!"):
        raise Overloaded("full")
    return prompt[-1].upper()


def run(p: Program) -> State:
    return p.run(engine=MockClient(last))


def test_a_span_holds_text_and_calls_said_inside() -> None:
    @program
    def p(s: State) -> None:
        s += "before "
        with s.span("reason"):
            s += "a" + bw.gen("x") + "b" + bw.select("y", ["c"])
        s += " after"
        assert s["reason"] == "aAbc"

    state = run(p)
    assert state.raw("reason") == "aAbc"
    assert state.text() == "before aAbc after"
    assert [record.call for record in state.explain().records] == ["x", "y"]


def test_spans_nest_and_overlap_nothing() -> None:
    @program
    def p(s: State) -> None:
        with s.span("outer"):
            s += "1"
            with s.span("inner"):
                s += "2" + bw.gen("x")
            with s.span("empty"):
                pass
            s += "3"

    state = run(p)
    assert (state["outer"], state["inner"], state["empty"]) == ("1223", "22", "")
    assert state.names() == ("x", "inner", "empty", "outer")


def test_a_span_over_whole_messages_reads_as_text_does() -> None:
    @program
    def p(s: State) -> None:
        s += bw.system("be")
        with s.span("turn"):
            s += bw.user("hi")
            with s.assistant():
                s += "a" + bw.gen("x")

    assert run(p)["turn"] == "user: hi\nassistant: aA\n"


def test_closing_a_span_does_not_wait() -> None:
    client = MockClient(last)

    @program
    def p(s: State) -> None:
        with s.span("name"):
            s += "a" + bw.gen("x")
        assert client.n_calls == 0
        s += "/" + bw.ref("name")
        assert s["name"] == "aA"

    assert p.run(engine=client).text() == "aA/aA"


def test_a_name_is_not_known_before_its_span_ends() -> None:
    @program
    def p(s: State) -> None:
        with s.span("name"):
            s += "a"
            with pytest.raises(ProgramError, match="nothing is called 'name'"):
                s["name"]
            with pytest.raises(ProgramError, match="nothing is called 'name'"):
                s += bw.ref("name")

    assert run(p)["name"] == "a"


def test_a_span_of_a_failed_call_fails_with_it() -> None:
    @program
    def p(s: State) -> None:
        with s.span("name"):
            s += "a!" + bw.gen("bad")
        with pytest.raises(ProgramError, match="full") as caught:
            s["name"]
        assert caught.value.call == "bad"
        with s.span("later"):
            s += "b"
        with pytest.raises(ProgramError, match="full"):
            s["later"]

    with pytest.raises(ProgramError, match="full"):
        run(p)


def test_an_exception_in_the_block_leaves_the_name_unbound_and_outer_spans_whole() -> None:
    @program
    def p(s: State) -> None:
        with s.span("outer"):
            s += "a"
            with pytest.raises(ValueError, match="mine"), s.span("inner"):
                s += "b"
                raise ValueError("mine")
            s += "c"
        assert "inner" not in s

    assert run(p)["outer"] == "abc"


def test_branches_inside_a_span_have_spans_of_their_own_that_join() -> None:
    @program
    def p(s: State) -> None:
        with s.span("whole"):
            s += "a"
            branches = s.fork(2)
            for i, twig in enumerate(branches):
                with twig.span("part"):
                    twig += str(i) + bw.gen("x")
            assert branches.join() == {"x": ["0", "1"], "part": ["00", "11"]}

    assert run(p)["whole"] == "a"


def test_a_cancelled_branch_keeps_no_span_pending() -> None:
    @program
    async def p(s: State) -> None:
        (twig,) = s.fork(1)
        with twig.span("part"):
            twig += "a" + bw.gen("x")
        twig.cancel()
        with pytest.raises(ProgramError, match="cancelled"):
            await twig.get("part")
        with pytest.raises(ProgramError, match="nothing can be appended"), twig.span("more"):
            pass

    p.run(engine=MockClient(last, delay=30))


async def test_an_async_body_awaits_a_span() -> None:
    @program
    async def p(s: State) -> None:
        with s.span("name"):
            s += "a" + bw.gen("x")
        s.set("copy", await s.get("name"))

    assert (await p.arun(engine=MockClient(last)))["copy"] == "aA"
