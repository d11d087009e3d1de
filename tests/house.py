"""The sources as the house rules see them: every module's tree, imports and functions.

Read by `ast`; nothing is imported. Used by `pure/test_architecture.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("radix", "lang", "backend", "server", "bench")


def sources() -> list[Path]:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return files + sorted(ROOT.glob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


TREES = {name_of(path): ast.parse(path.read_text()) for path in sources()}


def nodes(tree: ast.AST, typing: bool = True) -> Iterator[ast.AST]:
    """All nodes; without `typing` those are left out that only a type checker reads."""
    todo = [tree]
    for node in todo:
        yield node
        if typing or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            todo.extend(ast.iter_child_nodes(node))


def imported(name: str, tree: ast.AST, typing: bool = True) -> Iterator[tuple[str, int]]:
    """Every imported module of a file as a full dotted name, with its line.

    A name taken out of a package of ours counts as a module where it is one. Without `typing`
    imports for type checkers alone are left out.
    """
    package = ["branchwork", *name.split("/")[:-1]]
    for node in nodes(tree, typing):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            yield module, node.lineno
            for alias in node.names:
                below = f"{module}.{alias.name}"
                inside = ROOT.joinpath(*below.split(".")[1:])
                if inside.is_dir() or inside.with_suffix(".py").is_file():
                    yield below, node.lineno


def ours(name: str, typing: bool = True) -> list[tuple[str, int]]:
    """Imports of a file that stay in the house, without the leading "branchwork".

    "radix.cache" is a module, "" the face.
    """
    found = []
    for module, line in imported(name, TREES[name], typing):
        top, _, rest = module.partition(".")
        if top == "branchwork":
            found.append((rest, line))
    return found


def within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in allowed if part) or (
        module == "" and "" in allowed
    )


def is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def documented(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(function) is not None


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def complaints(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)
