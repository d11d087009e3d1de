"""`branchwork.Engine`: a model and its cache inside this process.

Owns everything `build.py` made and lets go of it on close. Knows no torch itself. Public through
the face.
"""

from __future__ import annotations

import sys
import weakref
from types import TracebackType

from rich.console import Console
from rich.progress import Progress as Display

from ..lang import shell
from ..lang.client import Client
from ..lang.request import Request, Text
from ..radix.key import pack
from .build import Built, Facts, build, find_model
from .config import EngineConfig, SchedulerConfig
from .model.bar import download_bar
from .port import Command, Flush, Peek, ReadStats, Reply, Stats


class Engine:
    """A loaded model that programs run on. A context manager, sync and async; thread-safe.

    Prints one line to standard error when it is ready (not with `quiet`). Several engines may live
    in one process; each has a KV pool of its own.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        dtype: str = "auto",
        kv_tokens: int | None = None,
        scheduler: SchedulerConfig | None = None,
        quiet: bool = False,
    ) -> None:
        """Find (fetch, the first time) and load `model`.

        `model` is a path to a .gguf file or a Hugging Face folder, or a known name. `dtype` "auto"
        is float32 on the CPU. `kv_tokens` sizes the KV pool; None takes half of the memory this
        process may still use, at most 4 GiB. Raises a `ModelError` or `InvalidRequest` that says
        what to do.
        """
        self.config = EngineConfig(
            model=model,
            dtype=dtype,
            kv_tokens=kv_tokens,
            scheduler=SchedulerConfig() if scheduler is None else scheduler,
        )
        built = _start(self.config, quiet)
        self.client: Client = built.client
        self.facts: Facts = built.facts
        self._frontend = built.client
        self._port = built.port
        # Also when the engine is forgotten, and at exit: a thread killed inside a torch call can
        # abort the interpreter's shutdown.
        self._close = weakref.finalize(self, built.port.close)

    def stats(self) -> Stats:
        """Counters and gauges; waits for the step under way."""
        return self._control(ReadStats()).stats

    def flush(self) -> int:
        """Forget all cached KV that no live call holds; the number of pages freed."""
        return self._control(Flush()).pages

    def peek(self, text: str, namespace: str = "") -> int:
        """How many leading tokens of a plain-text prompt are cached. Changes nothing."""
        prompt = self._frontend.prepare(Request(segments=(Text(text),))).prompt
        return self._control(Peek(prompt=pack(prompt.ids), namespace=namespace)).tokens

    def close(self) -> None:
        """End live calls with `EngineClosed`, stop the thread, free the memory. Idempotent."""
        self._close()

    async def aclose(self) -> None:
        """As `close`, without blocking the loop."""
        await self._port.aclose()

    def _control(self, command: Command) -> Reply:
        return shell.run(lambda: self._port.control(command))

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.aclose()


def _start(config: EngineConfig, quiet: bool) -> Built:
    console = Console(stderr=True, quiet=quiet)
    with download_bar(config.model, console) as fetching:
        path = find_model(config.model, fetching)
    with Display(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(f"loading {config.model}", total=None)
        built = build(
            config, path, lambda done, total, _name: bar.update(task, completed=done, total=total)
        )
    if not quiet:
        sys.stderr.write(f"branchwork: {built.facts.line}\n")
    return built
