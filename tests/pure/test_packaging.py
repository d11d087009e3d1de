"""What is in the wheel and the sdist, compared with the sources. Built offline from a copy."""

from __future__ import annotations

import ast
import configparser
import email
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("radix", "lang", "backend", "server", "bench")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
LEAVE = shutil.ignore_patterns(
    ".git", ".types", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
)


def build(kind: str, tree: Path, out: Path) -> Path:
    """Run one hook of the build backend in `tree`, as a front end would, without a network."""
    out.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with files lying about that must not get into the wheel."""
    copy = tmp_path_factory.mktemp("packaging") / "tree"
    shutil.copytree(ROOT, copy, ignore=LEAVE)
    for stray in ("bench/results.jsonl", "backend/model/weights.gguf", "docs/conf.py", "notes.txt"):
        (copy / stray).write_text("stray")
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build("wheel", tree, tree.parent / "from-tree")) as archive:
        yield archive


def contents(archive: zipfile.ZipFile) -> set[str]:
    return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(archive: zipfile.ZipFile, name: str) -> str:
    (path,) = [each for each in archive.namelist() if each.endswith(f".dist-info/{name}")]
    return archive.read(path).decode()


def test_the_wheel_is_the_rooms_under_one_name_and_nothing_else(
    tree: Path, wheel: zipfile.ZipFile
) -> None:
    modules = {
        f"branchwork/{path.relative_to(tree).as_posix()}"
        for room in ROOMS
        for path in (tree / room).rglob("*.py")
    }
    face = {"branchwork/__init__.py", "branchwork/__main__.py", "branchwork/py.typed"}
    found = contents(wheel)
    assert found - modules - face == set(), "too much"
    assert (modules | face) - found == set(), "missing"


def test_the_sdist_makes_the_same_wheel(tree: Path, wheel: zipfile.ZipFile) -> None:
    sdist = build("sdist", tree, tree.parent / "sdist")
    unpacked = tree.parent / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (again,) = unpacked.iterdir()
    assert {"README.md", "LICENSE"} <= {path.name for path in again.iterdir()}
    with zipfile.ZipFile(build("wheel", again, tree.parent / "from-sdist")) as second:
        assert contents(second) == contents(wheel)


def test_the_wheel_runs_from_where_it_is_unpacked(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import branchwork, branchwork.server.cli, branchwork.lang.request\n"
        "print(branchwork.__file__)"
    )
    command = [sys.executable, "-I", "-W", "error", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path / "branchwork"


def test_the_command_points_at_a_function_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    points = configparser.ConfigParser()
    points.read_string(metadata(wheel, "entry_points.txt"))
    target = points["console_scripts"]["branchwork"]
    module, _, function = target.partition(":")
    source = wheel.read(module.replace(".", "/") + ".py").decode()
    assert f"def {function}(" in source


def test_the_wheel_says_its_licence_and_what_it_needs(wheel: zipfile.ZipFile) -> None:
    facts = email.message_from_string(metadata(wheel, "METADATA"))
    assert facts["License-Expression"] == "Apache-2.0"
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")
    assert facts["Requires-Python"] == ">=3.11"
    core = [need for need in facts.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert len(core) == len(SETTINGS["project"]["dependencies"])
    for need in core:
        assert ">=" in need, f"{need} has no lower bound"
        assert "<" in need, f"{need} has no upper bound"


def test_the_face_carries_the_version_of_the_wheel() -> None:
    source = (ROOT / "__init__.py").read_text()
    assert f'__version__ = "{SETTINGS["project"]["version"]}"' in source


def test_every_library_a_room_imports_is_declared() -> None:
    """Not by luck of another package's dependencies."""
    needs = [*SETTINGS["project"]["dependencies"]]
    for extra, extra_needs in SETTINGS["project"].get("optional-dependencies", {}).items():
        needs += [] if extra in ("test", "dev") else extra_needs
    declared = {need.split(">")[0].split("[")[0].split(";")[0].strip().lower() for need in needs}
    nodes = [
        node
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    }
    foreign = {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"branchwork"}
    assert {name.lower().replace("_", "-") for name in foreign} - declared == set()
