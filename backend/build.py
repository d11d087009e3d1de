"""The composition root: from settings to a running engine. The one place that knows every room.

torch and transformers are imported only when a model is really loaded. Called by `embedded.py` (and
by the worker process of a server).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..radix.cache import PrefixCache
from .config import EngineConfig
from .inprocess import InProcessPort
from .machine import available_bytes, look
from .model.fetch import Fetcher
from .model.wheel import Progress
from .paths import cache_root
from .sched.budget import pages_for
from .sched.scheduler import Scheduler
from .text.chat import ChatFormat
from .text.frontend import Frontend
from .text.stops import watch_factory
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .model.spec import ModelSpec

# load(done, total, tensor name), called once a tensor
LoadProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What was built, for the start line and for machines."""

    model: str
    architecture: str
    dtype: str
    n_parameters: int
    context: int
    page_size: int
    n_pages: int
    compute: str

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.model} ({self.architecture}, {self.n_parameters / 1e6:,.0f}M parameters, "
            f"{self.dtype}), KV for {self.n_pages * self.page_size:,} tokens in pages of "
            f"{self.page_size}, {self.compute}"
        )


@dataclass(frozen=True, slots=True)
class Built:
    """A running engine: the client is the front, the port is what it stands on."""

    client: Frontend
    port: InProcessPort
    facts: Facts


def find_model(name: str, progress: Progress) -> Path:
    """The file or folder a model's name means, fetched if need be."""
    return Fetcher(cache_root(), progress).resolve(name)


def build(config: EngineConfig, path: Path, progress: LoadProgress | None = None) -> Built:
    """Load the model at `path` and start its engine. Raises a `ModelError` where that fails."""
    # torch's OpenMP threads spin while they wait, by default. On a few cores, beside any other busy
    # thread (this process's own Python is one), that makes decoding several times slower; see
    # docs/performance.md. Read once, when torch loads; a user's own choice stands.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from .runner import memory
    from .runner.load import LoadOptions, load_runner, memory_need, read_spec  # torch

    scratch = scratch_folder(path)
    spec = read_spec(path, scratch)
    page_size = config.scheduler.page_size
    if config.kv_tokens is None:
        need = memory_need(spec, config.dtype, page_size)
        n_pages = memory.pages_for(need, available_bytes())
    else:
        n_pages = pages_for(config.kv_tokens, page_size)
    tokenizer = load_tokenizer(path, scratch)
    options = LoadOptions(dtype=config.dtype, n_pages=n_pages, page_size=page_size)
    runner = load_runner(path, options, scratch, progress)
    scheduler = Scheduler(
        PrefixCache(n_pages, page_size), config.scheduler, watch_factory(tokenizer)
    )
    port = InProcessPort(scheduler, runner)
    chat = ChatFormat.of(tokenizer)
    client = Frontend(port, tokenizer, chat, spec.context_length, spec.vocab)
    return Built(client, port, _facts(config, spec, path, n_pages))


def load_tokenizer(path: Path, scratch: Path) -> Tokenizer:
    """A model's tokenizer. A GGUF file's is converted once: transformers is loaded, for seconds."""
    if path.is_dir():
        return Tokenizer.load(path)
    folder = scratch / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        from .text.convert import convert_gguf  # transformers, and with it torch

        convert_gguf(path, folder)
    return Tokenizer.load(folder)


def scratch_folder(path: Path) -> Path:
    """Where what is derived from a model is kept: beside a model of our cache, else in the cache.

    The folder's name carries the file's identity, so that a changed file starts afresh.
    """
    root, stat = cache_root(), path.stat()
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    name = f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return (path.parent if path.is_relative_to(root) else root / "derived") / name


def _facts(config: EngineConfig, spec: ModelSpec, path: Path, n_pages: int) -> Facts:
    machine = look()
    isa = next((s for s in reversed(machine.instruction_sets) if s.startswith("a")), "")
    return Facts(
        model=path.stem if path.is_file() else path.name,
        architecture=spec.architecture,
        dtype="float32" if config.dtype == "auto" else config.dtype,
        n_parameters=spec.n_parameters,
        context=spec.context_length,
        page_size=config.scheduler.page_size,
        n_pages=n_pages,
        compute=f"plain torch on {machine.cores} cores{f' ({isa})' if isa else ''}",
    )
