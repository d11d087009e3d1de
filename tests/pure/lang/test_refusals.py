"""What a user writes by mistake is refused by name where it is written, not deep inside."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from branchwork.lang import dsl as bw
from branchwork.lang.errors import InvalidRequest, ProgramError
from branchwork.lang.mock import MockClient
from branchwork.lang.program import Program, program
from branchwork.lang.state import State


@program
def nothing(s: State) -> None:
    s += "x"


ANY: Any = object()
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "stop": (lambda: bw.gen("a", stop=5), "stop must be a string or a list"),  # type: ignore[arg-type]
    "choices": (lambda: bw.select("a", None), "choices must be a list"),  # type: ignore[arg-type]
    "temperature": (lambda: bw.gen("a", temperature=10**400), "numbers must fit a float"),
    "logprobs": (lambda: bw.gen("a", logprobs=5), "logprobs must be True or False"),  # type: ignore[arg-type]
    "ignore_eos": (lambda: bw.gen("a", ignore_eos="no"), "ignore_eos must be"),  # type: ignore[arg-type]
    "ref": (lambda: bw.ref(5), "name must be a string"),  # type: ignore[arg-type]
    "role": (lambda: bw.role(5, "x"), "name must be a string"),  # type: ignore[arg-type]
    "program": (lambda: Program(5), "a program is a def"),  # type: ignore[arg-type]
    "program of a class": (lambda: Program(dict), "a program is a def"),
    "inputs": (lambda: nothing.run_batch(None, engine=ANY), "a list of dicts or tuples"),  # type: ignore[arg-type]
    "width": (
        lambda: nothing.run_batch([{}], engine=ANY, max_concurrency="x"),  # type: ignore[call-overload]
        "max_concurrency must be a whole number",
    ),
    "namespace": (lambda: nothing.using(namespace=5), "namespace must be a string"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_option_is_named(case: str) -> None:
    act, told = BAD[case]
    with pytest.raises(InvalidRequest, match=told):
        act()


def test_a_copy_that_was_not_opened_says_how() -> None:
    @program
    def body(s: State) -> None:
        t = s.copy()
        t += "x"  # type: ignore[misc, assignment]

    with pytest.raises(InvalidRequest, match="open the copy first"):
        body.run(engine=MockClient())


def test_an_expression_with_a_mistake_in_it_is_not_appended_in_part() -> None:
    @program
    def body(s: State) -> None:
        with pytest.raises(ProgramError, match="nothing is called 'nope'"):
            s += "x" + bw.gen("a") + bw.ref("nope")
        s += "y"

    client = MockClient()
    assert body.run(engine=client).text() == "y"
    assert client.n_calls == 0


def test_a_name_made_in_the_same_expression_may_be_referred_to() -> None:
    @program
    def body(s: State) -> None:
        s += "x" + bw.gen("a", max_tokens=3) + " = " + bw.ref("a")

    state = body.run(engine=MockClient())
    assert state.text() == f"x{state['a']} = {state['a']}"


def test_another_thread_cannot_append_and_nothing_of_it_stays() -> None:
    told: list[BaseException] = []

    @program
    def body(s: State) -> None:
        def work() -> None:
            try:
                s.append(bw.gen("a"))
            except BaseException as error:
                told.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)

    client = MockClient()
    body.run(engine=client)
    assert "not from another thread" in str(told[0])
    assert client.n_calls == 0


def test_ctrl_c_under_asyncio_run_cancels_a_blocking_run_at_once() -> None:
    @program
    def slow(s: State) -> None:
        s += "x" + bw.gen("a")

    client = MockClient(delay=30)

    async def main() -> None:
        slow.run(engine=client)

    def press() -> None:
        while not client.open_streams:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    start = time.monotonic()
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert time.monotonic() - start < 15
    assert client.open_streams == 0
