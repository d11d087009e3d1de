"""Many inputs through one program: as they finish, on the caller's loop, with progress."""

from __future__ import annotations

import asyncio
import io
import itertools
import sys
from collections.abc import Iterator

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import Cancelled, InvalidRequest, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import program
from branchwork.lang.progress import progress_of
from branchwork.lang.request import Request
from branchwork.lang.state import State


def last(prompt: str, request: Request) -> str:
    if prompt.endswith("!"):
        raise ValueError(prompt)
    return prompt[-1].upper()


@program
def echo(s: State, word: str, times: int = 1) -> None:
    for _ in range(times):
        s += word + bw.gen("x")
        assert s["x"]


async def test_arun_batch_is_run_batch_on_this_loop() -> None:
    states = await echo.arun_batch([("a", 3), ("b",)], engine=MockClient(last))
    assert [state["x"] for state in states] == ["A", "B"]
    assert await echo.arun_batch([], engine=MockClient()) == []
    found = await echo.arun_batch([("a!",), ("b",)], engine=MockClient(last), errors="return")
    assert isinstance(found[0], ProgramError)
    with pytest.raises(ProgramError, match="a!") as caught:
        await echo.arun_batch([("b",), ("a!",)], engine=MockClient(last))
    assert "in input 1 of the batch" in caught.value.__notes__


async def test_cancelling_arun_batch_frees_all() -> None:
    client = MockClient(last, delay=30)
    task = asyncio.create_task(echo.arun_batch([("a",)] * 5, engine=client, max_concurrency=3))
    while client.open_streams < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.open_streams, client.n_calls) == (0, 3)


def test_iter_batch_gives_states_as_they_finish() -> None:
    inputs = [("a", 9), ("b", 1), ("c", 4)]
    found = list(echo.iter_batch(inputs, engine=MockClient(last)))
    assert [index for index, _ in found] == [1, 2, 0]
    assert {index: state["x"] for index, state in found} == {0: "A", 1: "B", 2: "C"}
    assert list(echo.iter_batch([], engine=MockClient())) == []


async def test_iter_batch_takes_inputs_only_as_places_get_free() -> None:
    taken = 0

    def forever() -> Iterator[tuple[str]]:
        nonlocal taken
        for _ in itertools.count():
            taken += 1
            yield ("a",)

    client = MockClient(last)
    seen = 0
    async for _, state in echo.iter_batch(forever(), engine=client, max_concurrency=4):
        assert state["x"] == "A"
        seen += 1
        assert taken <= seen + 4
        if seen == 50:
            break
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.open_streams == 0


def test_iter_batch_raises_the_first_failure_and_ends_the_rest() -> None:
    client = MockClient(last)
    with pytest.raises(ProgramError, match="a!") as caught:
        list(echo.iter_batch([("a!",), ("b", 50)], engine=client))
    assert "in input 0 of the batch" in caught.value.__notes__
    assert client.open_streams == 0
    assert client.n_calls < 50


def test_iter_batch_returns_failures_in_place_if_asked() -> None:
    inputs = [("a!",), ("b", 3)]
    batch = echo.iter_batch(inputs, engine=MockClient(last), errors="return")
    (first, failed), (second, state) = batch
    assert (first, second) == (0, 1)
    assert isinstance(failed, ProgramError)
    assert isinstance(state, State)


def test_an_input_that_does_not_fit_ends_iter_batch_where_it_comes() -> None:
    client = MockClient(last)
    batch = iter(echo.iter_batch([("a",), ("b", 1, 2)], engine=client, max_concurrency=1))
    assert next(batch)[0] == 0
    with pytest.raises(InvalidRequest, match="too many positional"):
        next(batch)
    assert client.open_streams == 0
    with pytest.raises(InvalidRequest, match="max_concurrency"):
        echo.iter_batch([], engine=client, max_concurrency=0)


def test_a_program_that_cancels_itself_fails_alone() -> None:
    @program
    async def p(s: State, i: int) -> None:
        if i == 1:
            raise asyncio.CancelledError

    zero, one, two = p.run_batch([(i,) for i in range(3)], engine=MockClient(), errors="return")
    assert isinstance(zero, State) and isinstance(two, State)
    assert isinstance(one, Cancelled)


@pytest.mark.parametrize("width", [1, 7])
def test_any_width_gives_the_same(width: int) -> None:
    inputs = [(chr(97 + i), i % 3 + 1) for i in range(20)]
    states = echo.run_batch(inputs, engine=MockClient(last), max_concurrency=width)
    assert [state["x"] for state in states] == [word.upper() for word, _ in inputs]


# -- progress ---------------------------------------------------------------------------------


def test_without_a_terminal_progress_is_a_line_a_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_of(100, True) as tick:
        for i in range(100):
            tick(i == 35)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "10/100 programs"
    assert lines[-1] == "100/100 programs (1 failed)"


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    echo.run_batch([("a",), ("a!",)], engine=MockClient(last), progress=True, errors="return")
    assert "programs (1 failed)" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()


def test_no_progress_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    echo.run_batch([("a",)] * 3, engine=MockClient())
    assert capsys.readouterr() == ("", "")


def test_a_batch_that_fails_leaves_no_bar_running(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProgramError):
        echo.run_batch([("a!",)], engine=MockClient(last), progress=True)
    assert "programs" not in capsys.readouterr().err
