"""The page for those who come from SGLang says what is true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import branchwork as bw
from branchwork.lang.program import Program
from branchwork.lang.request import METHODS
from branchwork.lang.state import State

PAGE = (Path(__file__).parents[3] / "docs" / "migration-from-sglang.md").read_text()


def test_its_program_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    made: dict[str, object] = {"bw": bw}
    exec(compile(code.partition("with bw.Engine")[0], "page.py", "exec"), made)
    judge = made["judge"]
    assert isinstance(judge, Program)
    state = judge.run("An essay.", engine=bw.MockClient())
    assert state["passes"] in (True, False)
    assert len(state["grade"]) == 3


def test_every_name_it_uses_is_public() -> None:
    assert set(re.findall(r"\bbw\.(\w+)", PAGE)) <= set(bw.__all__)


def test_every_method_and_option_it_names_exists() -> None:
    assert set(re.findall(r'method="(\w+)"', PAGE)) == set(METHODS)
    for name in set(re.findall(r"`(?:await )?f\.(\w+)\(", PAGE)) - {"bind"}:
        assert name in dir(Program) or f"| `f.{name}(" in PAGE
    ours = "\n".join(line.split("|")[2] for line in PAGE.splitlines() if line.count("|") == 4)
    for name in re.findall(r"\bf\.(\w+)\(", ours):
        assert hasattr(Program, name)
    for name in re.findall(r"\b(?:s|state)\.(\w+)\(", ours):
        assert hasattr(State, name)
    for options in re.findall(r"f\.run_batch\(list, (.*?)\)", ours):
        given = {option.strip(" =") for option in options.split(",")}
        assert given <= set(inspect.signature(Program.run_batch).parameters)
