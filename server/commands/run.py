"""`branchwork run FILE.py[:PROGRAM]`: run a program of a file with the embedded engine."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from rich.console import Console

from ...backend.config import EngineConfig
from ...backend.embedded import Engine
from ...lang.errors import InvalidRequest
from ...lang.program import Program
from ...lang.state import State
from ..report import table
from ..show import print_json, say


def run(target: str, arguments: Sequence[str], config: EngineConfig, as_json: bool) -> None:
    """Run and print the text; the table of calls goes to standard error."""
    path, name = split_target(target)
    program = pick(load(path), name)
    values = bind(program, arguments)
    with open_engine(config) as engine:
        state = program.run(engine=engine, **values)
    report = state.explain()
    if as_json:
        print_json({"program": getattr(program, "__name__", name), **as_dict(state)})
        return
    say(state.text().rstrip("\n"))
    console = Console(stderr=True)
    console.print()
    console.print(table(report))
    console.print(str(report.savings), highlight=False)


def open_engine(config: EngineConfig) -> Engine:
    """The embedded engine of a command."""
    return Engine(config.model, dtype=config.dtype, kv_tokens=config.kv_tokens)


def as_dict(state: State) -> dict[str, Any]:
    """A finished run for a machine: text, values, calls and what sharing saved."""
    report = state.explain()
    return {
        "text": state.text(),
        "values": {name: state[name] for name in state.names()},
        "returned": state.returned,
        "calls": [msgspec.to_builtins(call) for call in report.records],
        "savings": msgspec.to_builtins(report.savings),
    }


def split_target(target: str) -> tuple[Path, str]:
    """("file.py", "name") of "file.py:name"; the name is "" where none is given."""
    path, name = Path(target), ""
    if not path.is_file() and ":" in target:
        front, _, name = target.rpartition(":")
        path = Path(front)
    if not path.is_file():
        raise InvalidRequest(f"expected FILE.py or FILE.py:PROGRAM, found no file {path}")
    return path, name


def load(path: Path) -> ModuleType:
    """Import a file under a name of its own, with its folder importable as for a script.

    What the file itself raises is its author's to see: it passes through with its traceback.
    """
    spec = importlib.util.spec_from_file_location("branchwork_program", path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{path} must be a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickling, dataclasses and typing look a module up by name
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def pick(module: ModuleType, name: str) -> Program:
    """The program called `name`; without a name the only one, or the one called "main"."""
    found = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    listed = ", ".join(found) or "none (a program is a function under @program)"
    if name:
        if name not in found:
            raise InvalidRequest(f"no program {name!r} in {module.__file__}; it has: {listed}")
        return found[name]
    if len(found) == 1:
        return next(iter(found.values()))
    if "main" in found:
        return found["main"]
    raise InvalidRequest(
        f"{module.__file__} must hold one program, or one called main; it has: {listed}. "
        "Name one: FILE.py:PROGRAM"
    )


def bind(program: Program, arguments: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE pairs as arguments. A value is JSON, or text where it is not or where the
    program says `str`.
    """
    parameters = inspect.signature(program).parameters
    values: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidRequest(f"--arg must be NAME=VALUE, found {argument!r}")
        if name in values:
            raise InvalidRequest(f"--arg {name} is given twice")
        parameter = parameters.get(name)
        wants_text = parameter is not None and parameter.annotation in (str, "str")
        values[name] = text if wants_text else _json_or_text(text)
    try:  # now, not when a model has been loaded or even fetched
        inspect.signature(program).bind(None, **values)
    except TypeError as error:
        takes = ", ".join(list(parameters)[1:]) or "no arguments"
        raise InvalidRequest(f"{error}; the program takes {takes}: give --arg NAME=VALUE") from None
    return values


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
