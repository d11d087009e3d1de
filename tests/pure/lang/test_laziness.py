"""When things happen: appending returns at once, reading waits for that name only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.request import Delta, Request
from branchwork.lang.state import State


class LogClient:
    """A mock that notes when calls begin and end, and holds back those whose prompt says so."""

    def __init__(self, log: list[str], held: Callable[[str], bool] = lambda text: False) -> None:
        self.log = log
        self.held = held
        self.inner = MockClient(lambda prompt, request: prompt[-1].upper())
        self.gate = asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        name = request.segments[-1].text  # type: ignore[union-attr]
        self.log.append(f"begin {name}")
        if self.held(name):
            await self.gate.wait()
        async for delta in self.inner.stream(request):
            yield delta
        self.log.append(f"end {name}")

    async def aclose(self) -> None:
        await self.inner.aclose()


def test_appending_returns_before_the_call_is_made() -> None:
    log: list[str] = []

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        log.append("appended a")
        s += "b" + bw.gen("y")
        log.append("appended b")
        s["x"]
        log.append("read x")

    state = p.run(engine=LogClient(log))
    assert log[:3] == ["appended a", "appended b", "begin a"]
    assert log.index("read x") > log.index("end a") - 1
    assert state.text() == "aAbB"


def test_run_returns_when_every_call_is_done() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        for twig in s.fork(2):
            twig += "b" + bw.gen("y")

    client = MockClient()
    state = p.run(engine=client)
    assert (client.n_calls, client.open_streams) == (3, 0)
    assert state.names() == ("x",)


async def test_reading_waits_for_that_name_only() -> None:
    log: list[str] = []
    client = LogClient(log, held=lambda name: name == "b")

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        s += "b" + bw.gen("y")
        assert s["x"] == "A"
        log.append("read x")
        client.gate.set()
        assert s["y"] == "B"

    await asyncio.wait_for(p.arun(engine=client), 5)
    assert log.index("read x") < log.index("end b")


async def test_the_parent_goes_on_while_a_branch_runs() -> None:
    log: list[str] = []
    client = LogClient(log, held=lambda name: name == "b")

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        (twig,) = s.fork(1)
        twig += "b" + bw.gen("y")
        s += "c" + bw.gen("z")
        assert s["z"] == "C"
        client.gate.set()
        assert twig["y"] == "B"

    await asyncio.wait_for(p.arun(engine=client), 5)
    assert log.index("end c") < log.index("end b")


async def test_fork_after_a_pending_call_does_not_block_the_program() -> None:
    log: list[str] = []
    client = LogClient(log, held=lambda name: name == "a")

    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x")
        branches = s.fork(2)
        branches += lambda i: str(i) + bw.gen("y")
        log.append("forked")
        client.gate.set()
        assert branches.join() == {"y": ["0", "1"]}
        assert branches[1].text() == "aA11"

    await asyncio.wait_for(p.arun(engine=client), 5)
    assert log[0] == "forked"


def test_a_reference_does_not_wait_and_keeps_the_value_it_was_made_for() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x") + "/" + bw.ref("x")
        s += "b" + bw.gen("x") + "/" + bw.ref("x")

    assert p.run(engine=LogClient([])).text() == "aA/AbB/B"


async def test_an_async_body_awaits_its_values() -> None:
    @program
    async def p(s: State, word: str) -> str:
        s += word + bw.gen("x")
        with pytest.raises(ProgramError, match=r"await s\.get"):
            s["x"]
        branches = s.fork(2)
        branches += "b" + bw.gen("y")
        with pytest.raises(ProgramError, match=r"await b\.ajoin"):
            branches.join()
        assert await branches.ajoin() == {"y": ["B", "B"]}
        return str(await s.get("x"))

    state = await p.arun("a", engine=LogClient([]))
    assert state.returned == "A"


def test_two_programs_wait_side_by_side_on_one_loop() -> None:
    @program
    def p(s: State) -> None:
        for _ in range(3):
            s += "a" + bw.gen("x")
            s["x"]

    client = MockClient()
    p.run_batch([{}] * 10, engine=client)
    assert client.most_open == 10
