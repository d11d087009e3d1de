"""`branchwork bench`: which measurements there are. Running one is the CLI's, by name alone."""

from __future__ import annotations

import ast
from importlib.resources import files

from ...lang.errors import InvalidRequest
from ..show import print_json, rows

PACKAGE = "branchwork.bench"


def found() -> dict[str, str]:
    """Name and question of every bench: a module with a `main`. Read, not imported."""
    benches = {}
    for file in sorted(files(PACKAGE).iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".py"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            question = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            benches[file.name.removesuffix(".py")] = " ".join(question.split())
    return benches


def list_benches(as_json: bool) -> None:
    """Print them."""
    benches = found()
    if as_json:
        print_json(benches)
    else:
        rows(benches)


def module_of(name: str) -> str:
    """The full name of the module to load; `few-shot` and `few_shot` are the same."""
    known = found()
    plain = name.replace("-", "_")
    if plain not in known:
        raise InvalidRequest(f"no bench {name!r}; there are {', '.join(known)}")
    return f"{PACKAGE}.{plain}"
