"""Time limits: a call's own, the program's, and the one timer behind them."""

from __future__ import annotations

import asyncio

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import CallTimeout, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.state import State
from branchwork.lang.watchdog import Watchdog


@pytest.mark.parametrize(
    "expression",
    [
        bw.gen("x", timeout=0.05),
        bw.gen("x", type=bool, timeout=0.05),
        bw.gen("x", choices=["a"], timeout=0.05),
        bw.select("x", ["a", "b"], timeout=0.05),
    ],
)
def test_a_call_may_have_a_limit_of_its_own(expression: bw.Expr) -> None:
    @program
    def p(s: State) -> None:
        s += "a" + expression

    client = MockClient(delay=30)
    with pytest.raises(ProgramError, match=r"longer than 0\.05 s") as caught:
        p.run(engine=client)
    assert isinstance(caught.value.__cause__, CallTimeout)
    assert caught.value.call == "x"
    assert client.open_streams == 0


def test_a_calls_own_limit_wins_over_the_programs_whichever_is_longer() -> None:
    @program
    def p(s: State) -> None:
        s += "a" + bw.gen("x", timeout=30)

    assert p.using(timeout=0.02).run(engine=MockClient(delay=0.1))["x"]


def test_a_shorter_limit_begun_later_is_kept() -> None:
    @program
    def p(s: State) -> None:
        slow, quick = s.fork(2)
        slow += "a" + bw.gen("slow", timeout=20)
        quick += "a" + bw.gen("quick", timeout=0.05)
        with pytest.raises(ProgramError, match=r"0\.05 s"):
            quick["quick"]
        slow.cancel()

    p.run(engine=MockClient(delay=30))


def test_a_late_call_in_a_branch_leaves_the_others_alone() -> None:
    @program
    def p(s: State) -> None:
        branches = s.fork(3)
        for i, twig in enumerate(branches):
            twig += "a" + bw.gen("x", timeout=0.05 if i == 1 else 20)
        with pytest.raises(ProgramError, match=r"x\[1\]"):
            branches.join()
        assert branches[0]["x"] and branches[2]["x"]

    p.run(engine=MockClient(delay=0.3))


async def test_one_timer_serves_many_and_is_gone_when_closed() -> None:
    watchdog = Watchdog()
    sleepers = [asyncio.ensure_future(asyncio.sleep(30)) for _ in range(4)]
    for limit, sleeper in zip((20, 0.05, 0.01, 0.03), sleepers, strict=True):
        watchdog.begin(sleeper, limit)
    watchdog.end(sleepers[3])
    await asyncio.wait(sleepers[1:3], timeout=5)
    assert [sleeper.done() for sleeper in sleepers] == [False, True, True, False]
    watchdog.close()
    for sleeper in sleepers:
        sleeper.cancel()
