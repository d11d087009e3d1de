"""Branchwork: programs that call a language model many times, made cheap by one radix tree.

The public face. Names load their rooms on first use, so that `import branchwork` is quick and free
of torch; only `Engine` needs it. What users may rely on is in `__all__`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .lang import errors
from .lang.defaults import register_factory

if TYPE_CHECKING:
    from .backend.config import SchedulerConfig
    from .backend.embedded import Engine
    from .lang.defaults import connect, set_default_engine
    from .lang.dsl import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        ref,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from .lang.feed import TextDelta
    from .lang.mock import MockClient
    from .lang.program import Program, program
    from .lang.state import State
    from .lang.stream import Stream

__version__ = "0.1.0"

_HOMES = {
    "Engine": ".backend.embedded",
    "MockClient": ".lang.mock",
    "Program": ".lang.program",
    "SchedulerConfig": ".backend.config",
    "State": ".lang.state",
    "Stream": ".lang.stream",
    "TextDelta": ".lang.feed",
    "assistant": ".lang.dsl",
    "assistant_begin": ".lang.dsl",
    "assistant_end": ".lang.dsl",
    "connect": ".lang.defaults",
    "gen": ".lang.dsl",
    "program": ".lang.program",
    "ref": ".lang.dsl",
    "select": ".lang.dsl",
    "set_default_engine": ".lang.defaults",
    "system": ".lang.dsl",
    "system_begin": ".lang.dsl",
    "system_end": ".lang.dsl",
    "user": ".lang.dsl",
    "user_begin": ".lang.dsl",
    "user_end": ".lang.dsl",
}

__all__ = [
    "Engine",
    "MockClient",
    "Program",
    "SchedulerConfig",
    "State",
    "Stream",
    "TextDelta",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "connect",
    "errors",
    "gen",
    "program",
    "ref",
    "select",
    "set_default_engine",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
]


def _start_engine() -> Any:
    return __getattr__("Engine")()


register_factory(_start_engine)


def __getattr__(name: str) -> Any:
    """Load a public name from the room it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'branchwork' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
