"""Fork, join, copy and cancel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec
import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import Cancelled, InvalidRequest, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import Program, program
from branchwork.lang.request import Delta, Request, RoleEnd, RoleStart, Text, Tokens
from branchwork.lang.state import State


def last(prompt: str, request: Request) -> str:
    return prompt[-1].upper()


def run(p: Program) -> State:
    client = MockClient(last)
    state = p.run(engine=client)
    assert client.open_streams == 0
    return state


@pytest.mark.parametrize("first", [None, ""])
def test_fork_before_any_text_gives_independent_branches(first: str | None) -> None:
    client = MockClient()

    @program
    def p(s: State) -> None:
        if first is not None:
            s += first
        branches = s.fork(3)
        for i, twig in enumerate(branches):
            twig += f"x{i}" + bw.gen("y", max_tokens=4)
        assert s.text() == ""
        branches.join()
        s += "z" + bw.gen("end")

    state = p.run(engine=client)
    assert len(state["y"]) == 3
    assert all(request.segments for request in client.requests)
    assert client.requests[-1].segments == (Text("z"),)


def test_fork_inside_an_open_role_continues_the_message() -> None:
    client = MockClient(last)

    @program
    def p(s: State) -> None:
        with s.assistant():
            s += "a"
            branches = s.fork(2)
            branches += "b" + bw.gen("x")
            with pytest.raises(ProgramError, match="'user' while 'assistant' is open"):
                branches[0].user("no")
        s.user("then")

    state = p.run(engine=client)
    assert client.requests[0].segments == (RoleStart("assistant"), Text("ab"))
    assert state.messages() == [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "then"},
    ]


def test_join_gathers_in_branch_order_whatever_ends_first() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(3)
        for i, twig in enumerate(branches):
            for _ in range(3 - i):
                twig += str(i) + bw.gen("x")
        assert branches.join() == {"x": ["0", "1", "2"]}
        assert s["x"] == ["0", "1", "2"]

    run(p)


def test_join_again_gives_a_new_list() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(2)
        branches += "a" + bw.gen("x")
        first = branches.join()["x"]
        branches[1] += "b" + bw.gen("x")
        second = branches.join()["x"]
        assert (first, second, s["x"]) == (["A", "A"], ["A", "B"], ["A", "B"])
        assert branches.join() == {}

    run(p)


def test_a_name_only_one_branch_has_is_none_for_the_others() -> None:
    @program
    def p(s: State) -> None:
        s.set("old", 1)
        branches = s.fork(2)
        branches[1].set("x", {"any": "value"})
        assert branches.join() == {"x": [None, {"any": "value"}]}

    run(p)


def test_nested_joins_give_lists_of_lists() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(2)
        for i, twig in enumerate(branches):
            inner = twig.fork(2)
            inner += str(i) + bw.gen("x")
            inner.join()
        assert branches.join() == {"x": [["0", "0"], ["1", "1"]]}

    run(p)


def test_copy_leaves_the_parent_as_it_was() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        with s.copy() as t:
            t += "thought" + bw.gen("y")
            s.set("seen", t["y"])
        s += "b" + bw.gen("z")

    state = run(p)
    assert state.text() == "aAbB"
    assert state["seen"] == "T"
    assert "y" not in state
    assert [each.call for each in state.explain().records] == ["x", "y[copy]", "z"]


def test_an_exception_in_a_copy_cancels_its_calls() -> None:
    client = MockClient(last, delay=30)

    @program
    def p(s: State) -> None:
        with pytest.raises(ValueError, match="enough"), s.copy() as t:
            t += "a" + bw.gen("x")
            raise ValueError("enough")

    p.run(engine=client)
    assert client.open_streams == 0


def test_cancel_stops_the_whole_subtree_and_frees_it() -> None:
    client = MockClient(lambda prompt, request: "", delay=0)

    @program
    async def p(s: State) -> None:
        s += "a" + bw.gen("x")
        await s.get("x")
        client._delay = 30
        branches = s.fork(2)
        branches += "b" + bw.gen("y")
        for twig in branches:
            inner = twig.fork(2)
            inner += "c" + bw.gen("z")
        while client.open_streams < 2:
            await asyncio.sleep(0)
        branches.cancel()
        with pytest.raises(ProgramError, match="cancelled") as caught:
            await inner[0].get("z")
        assert isinstance(caught.value.__cause__, Cancelled)
        with pytest.raises(ProgramError, match="nothing can be appended"):
            inner[0].append("more")

    state = p.run(engine=client)
    assert (client.open_streams, client.n_cancelled, client.n_calls) == (0, 2, 3)
    reasons = {each.call: each.finish_reason for each in state.explain().records}
    assert reasons["x"] == "stop"
    assert {reasons["y[0]"], reasons["z[1][1]"]} == {"cancelled"}


def test_a_cancelled_branch_joins_as_none_but_what_it_had_stays_readable() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(2)
        branches += "a" + bw.gen("x")
        assert branches[0]["x"] == "A"
        branches[0].cancel()
        assert branches.join() == {"x": [None, "A"]}
        assert branches[0]["x"] == "A"

    run(p)


def test_the_next_prompt_extends_the_last_token_for_token() -> None:
    client = MockClient(last)

    @program
    def p(s: State) -> None:
        s += bw.user("a") + bw.assistant("b" + bw.gen("x"))
        s += bw.user("c") + bw.assistant(bw.select("y", ["d"]))
        s += "e" + bw.gen("z")

    p.run(engine=client)
    one, two, three = (request.segments for request in client.requests)
    assert one == (
        *(RoleStart("user"), Text("a"), RoleEnd("user")),
        *(RoleStart("assistant"), Text("b")),
    )
    assert isinstance(two[0], Tokens)
    assert two[1:] == (
        *(Tokens((66,), (Text("B"),)), RoleEnd("assistant")),
        *(RoleStart("user"), Text("c"), RoleEnd("user"), RoleStart("assistant")),
    )
    assert isinstance(three[0], Tokens)
    assert three[0].ids[: len(two[0].ids)] == two[0].ids
    assert three[1:] == (Tokens((100,), (Text("d"),)), RoleEnd("assistant"), Text("e"))


@pytest.mark.parametrize("n", [0, -1, 1.5, "2"])
def test_a_fork_of_no_branches_is_refused(n: int) -> None:
    @program
    def p(s: State) -> None:
        s.fork(n)

    with pytest.raises(InvalidRequest, match=r"test_branches\.py:\d+.*fork"):
        run(p)


def test_ten_thousand_nested_forks_need_no_recursion() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        twig = s
        for _ in range(10_000):
            (twig,) = twig.fork(1)
        twig += "b" + bw.gen("y")
        assert twig["y"] == "B"

    run(p)


def test_a_tail_cut_off_by_a_stop_string_stays_text_and_joins_what_follows() -> None:
    class CutsToken(MockClient):
        """The stop string ended inside a token: its kept rest comes back as text."""

        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            async for delta in super().stream(request):
                finish = delta.finish
                assert finish is not None
                kept = Tokens(finish.kept.ids[:-1], (Text(finish.text[:-1]),))
                cut = msgspec.structs.replace(finish, kept=kept, tail=finish.text[-1])
                yield msgspec.structs.replace(delta, finish=cut)

    client = CutsToken(lambda prompt, request: "word")

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x") + "b" + bw.gen("y")

    assert p.run(engine=client).text() == "awordbword"
    assert client.requests[1].segments[1:] == (
        Tokens(tuple(map(ord, "wor")), (Text("wor"),)),
        Text("db"),
    )


def test_a_client_that_ignores_a_cancel_cannot_revive_the_branch() -> None:
    class Stubborn(MockClient):
        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
            async for delta in super().stream(request):
                yield delta

    client = Stubborn(last)

    @program
    async def p(s: State) -> None:
        (twig,) = s.fork(1)
        twig += "a" + bw.gen("x") + "b" + bw.gen("y")
        await asyncio.sleep(0.01)
        twig.cancel()
        await asyncio.sleep(0.01)
        with pytest.raises(ProgramError, match="cancelled"):
            await twig.get("x")

    p.run(engine=client)
    assert (client.n_calls, client.open_streams) == (1, 0)
