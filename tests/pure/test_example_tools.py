"""The examples' own parts that need no model, and what holds for every example."""

from __future__ import annotations

import ast
import inspect

import pytest
from example_programs import FOLDER, HELPERS, NAMES, load_example

import branchwork as bw
from branchwork.lang.program import Program

react = load_example("react")
documents = load_example("documents")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("14 * 6", "84"),
        (" 1950 - 1802", "148"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("-7 + 2", "-5"),
        ("6 / 4", "1.5"),
        ("10 / 3", "3.3333"),
        ("6 / 3", "2"),
        ("0.1 + 0.2", "0.3"),
        ("123456789 * 10", "1234567890"),
    ],
)
def test_the_calculator_reckons(text: str, value: str) -> None:
    assert react.calculate(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "chairs", "14 chairs", "1 +", "1 / 0", "1e999", "True + 1", "'a' * 3", "2 ** 9",
        "__import__('os')", "abs(-1)", "[1][0]", "x := 1", "1 if 2 else 3", "1, 2", "1 +" * 99,
    ],
)  # fmt: skip
def test_the_calculator_refuses_all_but_sums(text: str) -> None:
    with pytest.raises(react.ToolError):
        react.calculate(text)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("How many chairs are in the reading room?", "reading_room"),
        ("reading room", "reading_room"),
        ("Who made the clock?", "clock_tower"),
        ("who founded the library", "history"),
        ("oldest maps", "map_collection"),
        ("books lost in the flood", "flood"),
    ],
)
def test_search_finds_the_document_that_is_meant(query: str, name: str) -> None:
    found = documents.search(documents.load(), query, most=3)
    assert found[0].name == name
    assert len(found) <= 3


def test_search_finds_nothing_where_no_word_is_shared() -> None:
    assert documents.search(documents.load(), "zebra", most=3) == []
    assert documents.search(documents.load(), "what is the", most=3) == []
    with pytest.raises(react.ToolError):
        react.find("zebra")


def test_documents_have_names_titles_and_sentences() -> None:
    loaded = documents.load()
    assert len({document.name for document in loaded}) == len(loaded) == 12
    for document in loaded:
        assert document.title
        sentences = [sentence.text for sentence in document.sentences()]
        assert len(sentences) == len(set(sentences)) >= 2
        assert " ".join(sentences) == document.text


def test_a_sum_is_made_of_the_numbers_seen_each_once() -> None:
    step = react.Step("", "Search", "", "14 tables with 6 chairs and 14 lamps")
    assert react.seen_numbers("What do 6 of 3 cost?", [step]) == [" 6", " 3", " 14"]
    assert react.seen_numbers("How many?", []) == [" 0"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_it_shows_and_runs_both_ways(name: str) -> None:
    module = load_example(name)
    assert f"python examples/{name}.py" in (module.__doc__ or "")
    assert f"branchwork run examples/{name}.py" in (module.__doc__ or "")
    assert list(inspect.signature(module.main).parameters) == ["engine"]
    (program,) = [value for value in vars(module).values() if isinstance(value, Program)]
    inspect.signature(program).bind(None)  # every argument has a default


@pytest.mark.parametrize("name", [*NAMES, *HELPERS])
def test_an_example_uses_the_public_face_only(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names if each.name.startswith("branchwork")]
            assert names in ([], ["branchwork"])
        elif isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("branchwork")
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), f"{name}:{node.lineno} {node.attr}"
            if isinstance(node.value, ast.Name) and node.value.id == "bw":
                assert node.attr in bw.__all__


def test_the_readme_lists_every_example() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(NAMES) == 7
    for name in [*NAMES, *HELPERS]:
        assert f"[{name}.py]({name}.py)" in page
