"""The house rules, enforced: who may import whom, what stays out of where, sizes, the face.

Read from the sources by `ast`; nothing is imported here but in the fresh processes of the last
tests. The rules themselves are docs/architecture.md's; a new exception is a line here with its
reason.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import tomllib

import pytest
from house import (
    ROOMS,
    ROOT,
    TREES,
    complaints,
    documented,
    functions,
    imported,
    is_package,
    lines_of,
    name_of,
    ours,
    sources,
    within,
)

# room -> what it may import of the others; "backend" alone means all of it.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "radix": (),
    "lang": (),
    "backend": ("radix", "lang"),
    "server": (
        "lang",
        "backend.config",
        "backend.port",
        "backend.build",
        "backend.embedded",
        "backend.text.frontend",
        # `pull` and `env` need no engine; these three are free of torch.
        "backend.model.fetch",
        "backend.model.bar",
        "backend.machine",
    ),
    "bench": ("radix", "lang", "backend", "server", ""),
    # The face and `python -m branchwork`.
    "": ("lang", "backend.config", "backend.build", "backend.embedded", "server"),
}
# Inside backend: package -> siblings it must not know.
STRANGERS = {
    "backend/sched": ("text", "model", "runner", "attention", "grammar", "engine", "build"),
    "backend/runner": ("text", "grammar", "engine", "build"),
    "backend/grammar": ("sched", "model", "runner", "attention", "engine", "build"),
    "backend/text": ("sched", "model", "runner", "attention", "grammar", "engine", "build"),
    "backend/attention": ("sched", "text", "model", "runner", "grammar", "engine", "build"),
    "backend/model": ("sched", "text", "runner", "grammar", "engine", "build"),
}

ACQUAINTED = {
    ("backend/text/convert.py", "backend.model.gguf_file"): "one header, read once; no torch",
}

TORCH_MAY_LIVE_IN = ("backend/model/", "backend/attention/", "backend/runner/", "backend/build.py")
LIBRARY_HOMES = {
    "torch": TORCH_MAY_LIVE_IN,
    "triton": TORCH_MAY_LIVE_IN,
    "transformers": ("backend/text/convert.py",),
    "tokenizers": ("backend/text/",),
    "gguf": ("backend/model/",),
    "safetensors": ("backend/model/",),
    "huggingface_hub": ("backend/model/hub.py",),
    "typer": ("server/",),
    "rich": ("server/", "backend/model/bar.py", "backend/embedded.py", "lang/progress.py"),
    "greenlet": ("lang/",),
}

# Files that may load what is heavy, or an optional extra, only when it is wanted.
LAZY_IMPORTERS = ("__init__.py", "backend/build.py", "server/cli.py")
ENVIRON_READERS = {
    "server/cli.py": "the one reader of argv and environ",
    "backend/paths.py": "BRANCHWORK_CACHE, for the CLI and an embedded engine alike",
    "backend/build.py": "reads nothing: says how torch's threads should wait, before it loads",
    "backend/model/wheel.py": "reads nothing: hands the whole environment on to pip",
}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 6
KERNELS = ("backend/attention/triton_", "backend/native/")


def test_the_checker_sees_the_house() -> None:
    """Guard against a rule that passes because it looked at nothing."""
    assert {name.split("/")[0] for name in TREES if "/" in name} == set(ROOMS)
    assert "lang.errors" in {module for module, _ in ours("backend/config.py")}


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from ..radix import cache", "branchwork.radix"),
        ("from ..lang.errors import ModelError", "branchwork.lang.errors"),
        ("from .sched import plan", "branchwork.backend.sched.plan"),
        ("def f():\n    import branchwork.server", "branchwork.server"),
    ],
)
def test_the_checker_resolves_every_way_to_import(text: str, module: str) -> None:
    found = [name for name, _ in imported("backend/somewhere.py", ast.parse(text))]
    assert module in found


def test_rooms_import_only_downwards() -> None:
    found = []
    for name in TREES:
        room = name.split("/")[0] if "/" in name else ""
        allowed = MAY_IMPORT[room] + ((room,) if room else ())
        for module, line in ours(name):
            if room == "" and module in ("", "__main__"):
                continue
            # `from ..backend import config` names the package on the way to an allowed module.
            on_the_way = is_package(module) and any(a.startswith(f"{module}.") for a in allowed)
            if not within(module, allowed) and not on_the_way:
                found.append(f"{name}:{line} imports {module or 'the face'}")
    complaints(found)


def test_rooms_of_backend_do_not_know_each_other() -> None:
    found = []
    for folder, strangers in STRANGERS.items():
        banned = tuple(f"backend.{stranger}" for stranger in strangers)
        for name in TREES:
            if name.startswith(f"{folder}/"):
                found += [
                    f"{name}:{line} imports {module}"
                    for module, line in ours(name)
                    if within(module, banned) and (name, module) not in ACQUAINTED
                ]
    complaints(found)


def test_the_three_stages_meet_only_in_the_engine_and_where_it_is_built() -> None:
    stages = ("backend.sched.scheduler", "backend.runner.runner", "backend.grammar.stage")
    found = []
    for name in TREES:
        if name in ("backend/engine.py", "backend/build.py") or name.startswith("bench/"):
            continue
        met = {module for module, _ in ours(name) if within(module, stages)}
        if len(met) > 1:
            found.append(f"{name} imports {', '.join(sorted(met))}")
    complaints(found)


def test_no_module_reaches_itself_through_its_imports() -> None:
    modules = {name.removesuffix(".py").replace("/", "."): name for name in TREES if "/" in name}
    # A package's own file holds no import (next test), so passing through it leads nowhere.
    graph = {
        module: {target for target, _ in ours(name, typing=False) if target in modules}
        for module, name in modules.items()
    }
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_packages_run_no_code_of_their_own() -> None:
    """So that importing `lang.errors` never starts half the house; the face alone is lazy."""
    found = []
    for name, tree in TREES.items():
        if name.endswith("/__init__.py"):
            body = [node for node in tree.body if not _is_docstring(node)]
            found += [f"{name}:{node.lineno} holds more than a docstring" for node in body[:1]]
    complaints(found)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_libraries_stay_in_their_rooms() -> None:
    found = []
    for name, tree in TREES.items():
        if name.startswith("bench/"):
            continue
        for module, line in imported(name, tree):
            homes = LIBRARY_HOMES.get(module.partition(".")[0])
            if homes is not None and not name.startswith(homes):
                found.append(f"{name}:{line} imports {module}")
    complaints(found)


def test_rooms_are_never_imported_bare() -> None:
    """`import lang` works from the checkout's root and would load every module twice."""
    files = dict(TREES)
    for folder in ("tests", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            files[name_of(path)] = ast.parse(path.read_text())
    bare = set(ROOMS)
    found = []
    for name, tree in files.items():
        for module, line in imported(name, tree):
            if module.partition(".")[0] in bare:
                found.append(f"{name}:{line} imports {module}")
    complaints(found)


def test_nothing_imports_tests_or_examples() -> None:
    outside = ("tests", "examples", "conftest")
    complaints(
        [
            f"{name}:{line} imports {module}"
            for name, tree in TREES.items()
            for module, line in imported(name, tree)
            if module.removeprefix("branchwork.").partition(".")[0] in outside
        ]
    )


def test_imports_stand_at_the_top() -> None:
    found = set()
    for name, tree in TREES.items():
        if name in LAZY_IMPORTERS or name.startswith("bench/"):
            continue
        for function in functions(tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    found.add(f"{name}:{node.lineno} imports inside {function.name}")
    complaints(sorted(found))


def test_modules_are_not_imported_by_string() -> None:
    """Such an import is seen by none of the rules above."""
    complaints(
        [
            f"{name}:{node.lineno} imports by string"
            for name, tree in TREES.items()
            if name not in LAZY_IMPORTERS
            for node in ast.walk(tree)
            if (isinstance(node, ast.Attribute) and node.attr == "import_module")
            or (isinstance(node, ast.Name) and node.id in ("import_module", "__import__"))
        ]
    )


def test_environ_and_argv_have_their_readers() -> None:
    watched = {"environ", "environb", "getenv", "getenvb", "argv"}
    found = []
    for name, tree in TREES.items():
        if name in ENVIRON_READERS or name.startswith("bench/"):
            continue
        for node in ast.walk(tree):
            attribute = isinstance(node, ast.Attribute) and node.attr in watched
            taken = isinstance(node, ast.ImportFrom) and node.module in ("os", "sys")
            if attribute or (taken and watched & {alias.name for alias in node.names}):
                found.append(f"{name}:{node.lineno} reads the environment or argv")
    complaints(found)


def test_files_and_functions_stay_small() -> None:
    found = []
    for name, tree in TREES.items():
        if name.startswith(KERNELS):
            continue
        lines = len((ROOT / name).read_text().splitlines())
        if lines > MAX_FILE_LINES:
            found.append(f"{name} has {lines} lines, at most {MAX_FILE_LINES}")
        for function in functions(tree):
            length = lines_of(function) - (
                lines_of(function.body[0]) if documented(function) else 0
            )
            if length > MAX_FUNCTION_LINES:
                found.append(f"{name}:{function.lineno} {function.name} has {length} lines")
    complaints(found)


# Functions whose arguments are a user's words, not values that travel together.
MANY_ARGUMENTS = {
    "lang/dsl.py": ("gen",),
    "lang/program.py": ("program",),
    "server/cli.py": ("demo", "run", "chat"),
}


def test_functions_take_at_most_six_arguments() -> None:
    found = []
    for name, tree in TREES.items():
        if name.startswith(KERNELS):
            continue
        for function in functions(tree):
            spec = function.args
            names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
            count = len([n for n in names if n not in ("self", "cls")])
            if count > MAX_ARGUMENTS and function.name not in MANY_ARGUMENTS.get(name, ()):
                found.append(f"{name}:{function.lineno} {function.name} takes {count} arguments")
    complaints(found)


def test_no_state_hides_in_globals() -> None:
    complaints(
        [
            f"{name}:{node.lineno} says global"
            for name, tree in TREES.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Global)
        ]
    )


def test_every_module_says_what_it_is() -> None:
    complaints([name for name, tree in TREES.items() if not ast.get_docstring(tree)])


def test_the_package_list_is_the_folders() -> None:
    """A forgotten folder imports fine in the checkout and is missing from the wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["setuptools"]["packages"]
    folders = {
        f"branchwork.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
        for path in sources()
        if path.parent != ROOT
    }
    assert sorted(listed) == sorted({"branchwork", *folders})
    for package in listed:
        folder = ROOT.joinpath(*package.split(".")[1:])
        assert (folder / "__init__.py").is_file(), f"{folder} has no __init__.py"


def fresh(code: str) -> str:
    """What a new interpreter prints for `code`; it stands outside the checkout."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT / "docs",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_face_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import branchwork\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)\n"
        "print(time.perf_counter() - start, *sorted(heavy))"
    )
    seconds = []
    for _ in range(3):  # the best of three: a busy machine is not the import's fault
        taken, *heavy = fresh(code).split()
        assert heavy == []
        seconds.append(float(taken))
    assert min(seconds) < 0.3


def test_the_face_shows_exactly_its_public_names() -> None:
    code = (
        "import branchwork as bw\n"
        "assert len(bw.__all__) == len(set(bw.__all__)), 'a name twice'\n"
        "missing = [name for name in bw.__all__ if not hasattr(bw, name)]\n"
        "assert not missing, f'in __all__ but not there: {missing}'\n"
        "assert sorted(dir(bw)) == sorted(bw.__all__), 'dir() shows other names'\n"
        "print(*sorted(getattr(bw, '_HOMES', {})))"
    )
    lazy = set(fresh(code).split())
    typed = {
        alias.asname or alias.name
        for block in TREES["__init__.py"].body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == lazy, "type checkers and users see different names"


def test_asking_for_an_unknown_name_of_the_face_is_an_attribute_error() -> None:
    assert fresh("import branchwork; print(getattr(branchwork, 'no_such_name', 'none'))") == "none"
