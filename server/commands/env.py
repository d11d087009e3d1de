"""`branchwork env`: the facts a bug report needs."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from importlib import metadata

from ...backend.machine import Machine, look
from ...backend.model.fetch import default_fetcher
from ..show import print_json, rows, size

_PACKAGES = ("branchwork", "torch", "triton", "transformers", "tokenizers", "numpy", "gguf")


@dataclass(frozen=True, slots=True)
class Model:
    """A model in the cache."""

    name: str
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What `--json` prints. A package that is not installed has version None."""

    python: str
    packages: dict[str, str | None]
    machine: Machine
    cache: str
    models: list[Model]


def env(as_json: bool) -> None:
    """Print versions, machine, cache root and models. Imports none of the heavy libraries."""
    facts = collect()
    if as_json:
        print_json(dataclasses.asdict(facts))
        return
    machine = facts.machine
    memory = "unknown"
    if machine.memory_bytes is not None:
        memory = f"{size(machine.memory_bytes)} ({machine.memory_from})"
    rows(
        {
            "python": facts.python,
            **{name: version or "not installed" for name, version in facts.packages.items()},
            "system": machine.system,
            "cpu": f"{machine.cpu}, {machine.cores} usable cores",
            "instruction sets": " ".join(machine.instruction_sets) or "none known",
            "memory": memory,
            "cache": facts.cache,
            "models": "\n".join(f"{m.name} ({size(m.bytes)})" for m in facts.models) or "none yet",
        }
    )


def collect() -> Facts:
    """Read the facts; takes milliseconds and changes nothing."""
    fetcher = default_fetcher()
    return Facts(
        python=platform.python_version(),
        packages={name: _version(name) for name in _PACKAGES},
        machine=look(),
        cache=str(fetcher.root),
        models=[Model(name, str(path), n_bytes) for name, path, n_bytes in fetcher.present()],
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
