"""The engine a program runs on when its caller names none.

Set by the user (`set_default_engine`), else made once by the factory the embedding application
registered: the public face registers the embedded engine, so `lang` itself knows no backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import InvalidRequest, Unsupported


class _Defaults:
    """The process-wide choice. One instance, guarded by its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: Any = None
        self.factory: Callable[[], Any] | None = None


_defaults = _Defaults()


def set_default_engine(engine: Any) -> None:
    """Have programs run on `engine` (an engine or a Client) unless told otherwise; None forgets it.

    The caller keeps owning the engine and closes it.
    """
    with _defaults.lock:
        _defaults.engine = engine


def register_factory(factory: Callable[[], Any]) -> None:
    """Say how to make an engine on first need. Called once, by the public face."""
    with _defaults.lock:
        _defaults.factory = factory


def connect(url: str) -> NoReturn:
    """Programs on a server elsewhere, through the same port. Not served by this version.

    Raises `Unsupported`, and says what to do instead.
    """
    raise Unsupported(
        f"connect({url!r}): this version runs programs in its own process only; write "
        "`with branchwork.Engine() as engine:` and pass engine=engine, or pass any object with the "
        "methods of branchwork.lang.client.Client. A client for servers comes with the server"
    )


def default_engine() -> Any:
    """The default engine, made now if need be. Raises `InvalidRequest` where none can be made."""
    with _defaults.lock:
        if _defaults.engine is None and _defaults.factory is not None:
            _defaults.engine = _defaults.factory()
        if _defaults.engine is None:
            raise InvalidRequest(
                "no engine to run on: pass engine=, or call branchwork.set_default_engine"
            )
        return _defaults.engine
