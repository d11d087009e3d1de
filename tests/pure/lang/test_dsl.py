"""Expressions: what `gen` and `select` accept, and nodes that survive serialising."""

from __future__ import annotations

import datetime
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwork.lang import dsl as bw
from branchwork.lang import ir
from branchwork.lang.check import check
from branchwork.lang.errors import BranchworkError, InvalidRequest, ProgramError, Unsupported
from branchwork.lang.mock import MockClient
from branchwork.lang.program import Program, program
from branchwork.lang.state import State


def kinds(expression: bw.Expr) -> list[str]:
    return [type(node).__name__ for node in expression.nodes]


def test_expressions_join_with_text_on_both_sides() -> None:
    assert kinds("a" + bw.gen("x") + "b") == ["Text", "Gen", "Text"]
    assert kinds(bw.gen("x") + bw.select("y", ["a"])) == ["Gen", "Select"]
    assert kinds("" + bw.gen("x")) == ["Gen"]
    assert kinds(bw.user("hi" + bw.gen("x"))) == ["RoleStart", "Text", "Gen", "RoleEnd"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"regex": "a+"}, "regex needs grammars"),
        ({"regex": ""}, "regex needs grammars"),
        ({"json_schema": {}}, "json_schema needs grammars"),
        ({"grammar": "start: a"}, "grammar needs grammars"),
        ({"type": int}, "type=int needs grammars"),
        ({"type": float}, "type=float needs grammars"),
        ({"type": str}, "type=str needs grammars"),
        ({"type": datetime.date}, "type=date needs grammars"),
        ({"type": list[int]}, "type=list.* needs grammars"),
        ({"type": "int"}, "type='int' needs grammars"),
        ({"type": int, "max_tokens": 5}, "type=int needs grammars"),
    ],
)
def test_what_is_not_served_yet_is_refused_by_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsupported, match=rf"test_dsl\.py:\d+\] gen: {why}"):
        bw.gen("x", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "a", "json_schema": {}},
        {"choices": ["a"], "type": int},
        {"choices": ["a"], "temperature": 0.5},
        {"choices": ["a"], "max_tokens": 5},
        {"choices": ["a"], "stop": "\n"},
        {"choices": []},
        {"choices": [""]},
        {"choices": ["a", ""]},
        {"choices": ["a", "a"]},
        {"choices": "abc"},
        {"n": 0},
        {"n": 129},
        {"n": True},
        {"n": 1.5},
        {"choices": ["a"], "n": 2},
        {"max_tokens": -1},
        {"max_tokens": "5"},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": True},
        {"top_k": -2},
        {"top_k": 1.5},
        {"min_p": 1.5},
        {"min_p": "0.1"},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("nan")},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -2.5},
        {"logit_bias": [(1, 2.0)]},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"": 1}},
        {"logit_bias": {True: 1}},
        {"logit_bias": {"9" * 5000: 1}},
        {"logit_bias": {1: "2"}},
        {"logit_bias": {1: float("inf")}},
        {"logit_bias": {1: 1.0, "1": 2.0}},
        {"stop_token_ids": "ab"},
        {"stop_token_ids": [True]},
        {"stop_token_ids": -1},
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 8},
        {"top_logprobs": 21},
        {"top_logprobs": True},
        {"choices": ["a"], "top_k": 5},
        {"type": bool, "min_tokens": 1},
        {"seed": -1},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"name": ""},
        {"name": 64},
        {"timeout": 0},
        {"timeout": "5"},
        {"timeout": True},
        {"type": bool, "temperature": 1},
        {"type": bool, "choices": ["a"]},
        {"type": Literal["1", 1]},
        {"type": Literal[""]},
        {"type": Enum("Empty", [])},
    ],
)
def test_conflicts_and_values_out_of_range_are_refused_on_their_line(
    options: dict[str, Any],
) -> None:
    with pytest.raises(InvalidRequest, match=r"test_dsl\.py:\d+\] gen: "):
        bw.gen(**{"name": "x", **options})


@pytest.mark.parametrize("choices", [[], [""]])
def test_no_choice_fails_at_once_and_the_next_call_works(choices: list[str]) -> None:
    client = MockClient()

    @program
    def p(s: State) -> None:
        with pytest.raises(InvalidRequest, match="at least one non-empty string"):
            s += "a" + bw.select("x", choices)
        s += "b" + bw.gen("y")

    assert p.run(engine=client)["y"]
    assert client.n_calls == 1


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"test_dsl\.py:\d+\] select: .*total, token_mean"):
        bw.select("x", ["a"], method="best")


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Level(Enum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("kind", "choices", "value"),
    [
        (bool, ("True", "False"), False),
        (Literal["a", "b"], ("a", "b"), "b"),
        (Literal[1, None], ("1", "None"), None),
        (Literal[Level.LOW, 5], ("LOW", "5"), 5),
        (Mood, ("good", "bad"), Mood.BAD),
        (Level, ("LOW", "HIGH"), Level.HIGH),
    ],
)
def test_a_type_of_few_values_is_chosen_and_parsed_back(
    kind: object, choices: tuple[str, ...], value: object
) -> None:
    client = MockClient(scorer=lambda prompt, choice: (-float(choice != choices[1]),))

    @program
    def p(s: State) -> None:
        s += "q" + bw.gen("x", type=kind)

    state = p.run(engine=client)
    assert client.requests[0].choices == choices
    assert state["x"] == value
    assert type(state["x"]) is type(value)
    assert state.raw("x") == choices[1]
    assert state.text() == "q" + choices[1]
    assert list(state.scores("x")) == list(choices)


def test_members_of_an_enum_serialise_as_what_they_read() -> None:
    nodes = (bw.gen("x", type=Mood) + bw.gen("y", type=Level) + bw.gen("z", type=bool)).nodes
    found = ir.decode(ir.encode(nodes))
    assert [node.values for node in found if isinstance(node, ir.Select)] == [
        ("good", "bad"),
        (1, 2),
        (True, False),
    ]


def test_begin_and_end_are_the_same_message_in_two_halves() -> None:
    halves = (
        *(bw.system_begin() + "a" + bw.system_end()).nodes,
        *(bw.user_begin() + "b" + bw.user_end()).nodes,
        *(bw.assistant_begin() + bw.gen("x") + bw.assistant_end()).nodes,
    )

    @program
    def p(s: State) -> None:
        s += bw.Expr(halves)

    @program
    def whole(s: State) -> None:
        s += bw.system("a") + bw.user("b") + bw.assistant(bw.gen("x"))

    one, two = MockClient(), MockClient()
    assert p.run(engine=one).text() == whole.run(engine=two).text()
    assert one.requests == two.requests


def test_choices_make_a_gen_a_select() -> None:
    assert kinds(bw.gen("x", choices=["a", "b"])) == ["Select"]
    assert kinds(bw.gen("x", n=1)) == ["Gen"]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -1},
        {"top_k": -2},
        {"min_p": 2},
        {"seed": "x"},
        {"timeout": 0},
        {"max_tokens": 1.5},
        {"unknown": 1},
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Program(lambda s: None).using(**changes)


texts = st.text(max_size=5)
nodes: st.SearchStrategy[ir.Node] = st.one_of(
    st.builds(ir.Text, texts, texts),
    st.builds(ir.RoleStart, texts),
    st.builds(ir.RoleEnd, texts),
    st.builds(
        ir.Gen,
        name=st.none() | texts,
        max_tokens=st.none() | st.integers(0, 9),
        temperature=st.none() | st.floats(0, 2),
        top_k=st.none() | st.integers(0, 9),
        logit_bias=st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 9))).map(tuple),
        stop_token_ids=st.lists(st.integers(0, 9)).map(tuple),
        seed=st.none() | st.integers(0, 2**63 - 1),
        stop=st.lists(texts).map(tuple),
        logprobs=st.booleans(),
        where=texts,
    ),
    st.builds(ir.Select, name=texts, choices=st.lists(texts).map(tuple), method=texts),
    st.builds(ir.Ref, texts),
    st.builds(ir.Fork, st.integers(1, 9), st.booleans()),
    st.builds(ir.Join, st.lists(texts).map(tuple)),
    st.builds(ir.SpanStart, texts),
    st.builds(ir.SpanEnd, texts),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(nodes, max_size=6).map(tuple))
def test_nodes_survive_serialising(program_nodes: tuple[ir.Node, ...]) -> None:
    assert ir.decode(ir.encode(program_nodes)) == program_nodes


def test_what_a_program_appended_can_be_read_back_as_nodes() -> None:
    @program
    def p(s: State) -> None:
        s += bw.user("a")
        branches = s.fork(2)
        branches += "b" + bw.gen("x")
        branches.join()
        with s.copy():
            pass

    state = p.run(engine=MockClient())
    found = ir.decode(ir.encode(state.nodes()))
    assert found == state.nodes()
    names = [type(node).__name__ for node in found]
    assert names == ["RoleStart", "Text", "RoleEnd", "Fork", "Join", "Fork"]
    assert all(node.where.startswith("test_dsl.py:") for node in found)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((ir.RoleStart("a"), ir.RoleStart("b")), "do not nest"),
        ((ir.RoleEnd("a"),), "no role is open"),
        ((ir.RoleStart("a"), ir.RoleEnd("b")), "'a' is open"),
        ((ir.Ref("x"), ir.Gen(name="x")), "nothing is called 'x'"),
    ],
)
def test_check_finds_the_first_broken_rule(bad: tuple[ir.Node, ...], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        check(bad)


def test_check_passes_what_keeps_the_rules() -> None:
    check((*bw.user("a" + bw.gen("x")).nodes, ir.Ref("x"), ir.Join(("y",)), ir.Ref("y")))


def test_every_mistake_is_a_branchwork_error() -> None:
    for error in (InvalidRequest, ProgramError, Unsupported):
        assert issubclass(error, BranchworkError)
