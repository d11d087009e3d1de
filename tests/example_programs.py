"""The examples as modules, loaded as a script or the CLI would: with their folder importable."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "examples"
HELPERS = ("documents",)
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)


@functools.cache
def load_example(name: str) -> ModuleType:
    """The module `examples/<name>.py`, once a process."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
