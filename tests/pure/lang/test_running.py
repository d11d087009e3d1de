"""The ways to run a program: blocking, in a loop, in a body, in batches; Ctrl-C; settings."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from interrupts import interrupt_when_busy

from branchwork.lang import dsl as bw
from branchwork.lang.calls import derive_seed
from branchwork.lang.defaults import connect
from branchwork.lang.errors import EngineClosed, InvalidRequest, ProgramError, Unsupported
from branchwork.lang.mock import MockClient
from branchwork.lang.program import client_of, program
from branchwork.lang.request import Request
from branchwork.lang.state import State


@program
def echo(s: State, word: str, times: int = 1) -> None:
    for _ in range(times):
        s += word + bw.gen("x")
        assert s["x"]


def last(prompt: str, request: Request) -> str:
    if prompt.endswith("!"):
        raise ValueError(prompt)
    return prompt[-1].upper()


class Engine:
    def __init__(self) -> None:
        self.client = MockClient(last)


def test_an_engine_or_a_client_will_do() -> None:
    engine = Engine()
    assert client_of(engine) is engine.client
    assert echo.run("a", engine=engine)["x"] == "A"
    assert echo.run(word="a", engine=engine.client)["x"] == "A"
    with pytest.raises(InvalidRequest, match="found str"):
        echo.run("a", engine="smollm2")  # type: ignore[arg-type]


def test_a_server_elsewhere_is_refused_by_name_with_what_works_today() -> None:
    with pytest.raises(Unsupported, match=r"connect\('http://host:8000'\).*branchwork\.Engine"):
        connect("http://host:8000")


@pytest.mark.parametrize("arguments", [{}, {"word": "a", "wrong": 1}])
def test_arguments_that_do_not_fit_are_refused_before_anything_runs(
    arguments: dict[str, Any],
) -> None:
    client = MockClient()
    with pytest.raises(InvalidRequest, match=r"echo\(s: 'State', word"):
        echo.run(engine=client, **arguments)
    with pytest.raises(InvalidRequest):
        echo.run_batch([{"word": "a"}, arguments], engine=client)
    assert client.n_calls == 0


async def test_run_works_inside_a_running_loop() -> None:
    assert echo.run("a", engine=MockClient(last))["x"] == "A"
    assert (await echo.arun("b", engine=MockClient(last)))["x"] == "B"


async def test_an_error_inside_a_running_loop_comes_out_of_run() -> None:
    with pytest.raises(ProgramError, match="a!"):
        echo.run("a!", engine=MockClient(last))


def test_a_program_run_in_a_body_does_not_hold_up_its_neighbours() -> None:
    client = MockClient(last)

    @program
    def outer(s: State) -> None:
        s.set("inner", echo.run("a", 3, engine=client)["x"])

    states = outer.run_batch([{}] * 4, engine=client)
    assert [state["inner"] for state in states] == ["A"] * 4
    assert client.most_open == 4


def test_a_program_called_with_a_state_continues_that_state() -> None:
    @program
    def outer(s: State) -> None:
        s += "("
        echo(s, "a")
        s += ")"

    assert outer.run(engine=MockClient(last)).text() == "(aA)"


def test_a_body_sees_the_callers_context_and_keeps_its_changes_to_itself() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("outside")
    seen = []

    @program
    def p(s: State) -> None:
        seen.append(variable.get())
        variable.set("inside")
        s += "a" + bw.gen("x")
        assert s["x"]
        seen.append(variable.get())

    p.run(engine=MockClient())
    assert seen == ["outside", "inside"]
    assert variable.get() == "outside"


def test_what_the_body_returns_is_kept() -> None:
    @program
    def p(s: State) -> int:
        return 5

    assert p.run(engine=MockClient()).returned == 5


# -- batches ----------------------------------------------------------------------------------


def test_a_batch_keeps_the_order_of_its_inputs() -> None:
    inputs = [{"word": chr(97 + i), "times": 5 - i} for i in range(5)]
    states = echo.run_batch(inputs, engine=MockClient(last))
    assert [state["x"] for state in states] == list("ABCDE")
    assert echo.run_batch([("a",), ("b", 2)], engine=MockClient(last))[1]["x"] == "B"
    assert echo.run_batch([], engine=MockClient()) == []


def test_a_batch_of_thousands_keeps_few_programs_alive() -> None:
    alive, most = 0, 0

    @program
    def p(s: State, i: int) -> None:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        s += f"{i}" + bw.gen("x")
        assert s["x"]
        alive -= 1

    client = MockClient()
    states = p.run_batch([{"i": i} for i in range(3000)], engine=client, max_concurrency=20)
    assert len(states) == 3000
    assert (most, client.most_open, client.open_streams) == (20, 20, 0)


def test_the_first_error_ends_a_batch_and_names_the_input() -> None:
    client = MockClient(last)
    inputs = [{"word": "a!" if i == 3 else "a", "times": 50} for i in range(10)]
    with pytest.raises(ProgramError, match="a!") as caught:
        echo.run_batch(inputs, engine=client, max_concurrency=4)
    assert "in input 3 of the batch" in caught.value.__notes__
    assert client.open_streams == 0
    assert client.n_calls < 100


def test_errors_can_be_returned_in_place() -> None:
    inputs = [{"word": "a"}, {"word": "b!"}, {"word": "c"}]
    one, two, three = echo.run_batch(inputs, engine=MockClient(last), errors="return")
    assert isinstance(two, ProgramError)
    assert isinstance(one, State) and isinstance(three, State)
    assert (one["x"], three["x"]) == ("A", "C")


@pytest.mark.parametrize("options", [{"max_concurrency": 0}, {"errors": "ignore"}])
def test_batch_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        echo.run_batch([{"word": "a"}], engine=MockClient(), **options)


def test_progress_counts_programs_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    echo.run_batch([("a",)] * 3, engine=MockClient(), progress=True)
    assert "3/3 programs\n" in capsys.readouterr().err


# -- cancelling -------------------------------------------------------------------------------


def test_ctrl_c_cancels_and_frees() -> None:
    client = MockClient(last, delay=30)
    with interrupt_when_busy(client), pytest.raises(KeyboardInterrupt):
        echo.run("a", engine=client)
    assert (client.open_streams, client.n_cancelled) == (0, 1)


async def test_ctrl_c_inside_a_running_loop_cancels_and_frees() -> None:
    client = MockClient(last, delay=30)
    with interrupt_when_busy(client), pytest.raises(KeyboardInterrupt):
        echo.run_batch([("a",)] * 3, engine=client)
    assert (client.open_streams, client.n_cancelled) == (0, 3)


async def test_cancelling_arun_frees_and_lets_the_body_clean_up() -> None:
    client = MockClient(last, delay=30)
    cleaned = []

    @program
    def p(s: State) -> None:
        branches = s.fork(3)
        branches += "a" + bw.gen("x")
        try:
            branches.join()
        finally:
            cleaned.append(True)

    task = asyncio.create_task(p.arun(engine=client))
    while client.open_streams < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.open_streams, client.n_cancelled, cleaned) == (0, 3, [True])


def test_a_closed_client_fails_the_call() -> None:
    client = MockClient()
    asyncio.run(client.aclose())
    with pytest.raises(ProgramError) as caught:
        echo.run("a", engine=client)
    assert isinstance(caught.value.__cause__, EngineClosed)


# -- settings ---------------------------------------------------------------------------------


def test_options_of_the_call_win_over_those_of_the_program() -> None:
    client = MockClient()

    @program(temperature=0.5, max_tokens=7, top_p=0.9, namespace="here")
    def p(s: State) -> None:
        s += "a" + bw.gen("x") + bw.gen("y", temperature=0, max_tokens=3, logprobs=True)

    p.run(engine=client)
    one, two = (request.sampling for request in client.requests)
    assert (one.temperature, one.max_tokens, one.top_p, one.seed) == (0.5, 7, 0.9, None)
    assert (two.temperature, two.max_tokens, two.logprobs) == (0, 3, True)
    assert client.requests[0].namespace == "here"


def test_seeds_differ_between_siblings_and_calls_and_repeat_between_runs() -> None:
    @program(seed=5)
    def p(s: State) -> None:
        s += "a" + bw.gen("x") + bw.gen("y") + bw.gen("own", seed=6)
        s.fork(2).__iadd__("b" + bw.gen("z"))
        s.fork(1).__iadd__("b" + bw.gen("z"))

    def seeds() -> list[int | None]:
        client = MockClient()
        p.run(engine=client)
        return sorted(request.sampling.seed or 0 for request in client.requests)

    found = seeds()
    assert len(set(found)) == 6
    assert found == seeds()
    calls = [(5, (), 0), (5, (), 1), (6, (), 2), (5, (0, 0), 0), (5, (0, 1), 0), (5, (1, 0), 0)]
    assert found == sorted(derive_seed(*call) for call in calls)
