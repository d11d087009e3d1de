"""A measurement as one JSON line: what was asked, every sample, on what machine, of which commit.

Lines are appended to a file and compared later; nothing is averaged away. Knows no engine.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from ..backend.machine import look

_LIBRARIES = ("branchwork", "torch", "triton", "transformers", "numpy")
_GIT_S = 10.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of samples comes to; the quartiles are the ends where there are too few."""

    n: int
    median: float
    least: float
    most: float
    lower_quartile: float
    upper_quartile: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `samples` by quantity, its unit in its name ("seconds"); `facts` are exact."""

    bench: str
    parameters: dict[str, Any]
    samples: dict[str, list[float]]
    spread: dict[str, Spread]
    facts: dict[str, Any] = {}
    machine: dict[str, Any]
    commit: str | None


def spread(samples: list[float]) -> Spread:
    """Median, ends and quartiles of at least one sample."""
    low = high = None
    if len(samples) >= 3:
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(
        n=len(samples),
        median=statistics.median(samples),
        least=min(samples),
        most=max(samples),
        lower_quartile=min(samples) if low is None else low,
        upper_quartile=max(samples) if high is None else high,
    )


def record(
    bench: str,
    parameters: dict[str, Any],
    samples: dict[str, list[float]],
    facts: dict[str, Any] | None = None,
) -> Record:
    """A record of this machine and checkout, now."""
    return Record(
        bench=bench,
        parameters=parameters,
        samples=samples,
        spread={name: spread(values) for name, values in samples.items() if values},
        facts=facts or {},
        machine=machine(),
        commit=commit(),
    )


def to_line(found: Record) -> str:
    """One line of JSON, without its end."""
    return msgspec.json.encode(found).decode()


def from_line(line: str) -> Record:
    """The record of a line; raises `msgspec.ValidationError` where it is none."""
    return msgspec.json.decode(line, type=Record)


def append(path: Path, found: Record) -> None:
    """Put a line at the end of a file, in one write: several benches may share it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(to_line(found) + "\n")


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code. Names no host and no user."""
    facts = look()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": facts.system,
        "cpu": facts.cpu,
        "cores": facts.cores,
        "instruction_sets": list(facts.instruction_sets),
        "memory_bytes": facts.memory_bytes,
        "load": load,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _LIBRARIES},
    }


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """The checkout's commit, "+" behind it where files differ; None where this is no checkout.

    (An installed package may lie inside somebody's repository: then that one is not ours.)
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != folder.resolve().parent:
        return None
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return found and found + ("+" if changed else "")


def _git(folder: Path, *argv: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *argv],
            check=True,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
