"""Bytes this process may use -> number of KV pages.

Arithmetic and a reader of the kernel's accounting files; no torch, no model. Called by the
composition root before anything is allocated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...lang.errors import ModelError

KV_SHARE = 0.5
"""Part of what is left beside the weights that the pool may take: activations, logits and the
programs themselves live in the rest."""

MAX_KV_BYTES = 4 << 30
"""A pool beyond this serves no CPU: attending over it once takes longer than recomputing it."""

ASSUMED_BYTES = 4 << 30
"""Taken where the system says nothing (neither Linux nor POSIX sysconf)."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """`weights` bytes of the loaded model; `page` bytes of one KV page over all layers."""

    weights: int
    page: int


def pages_for(need: MemoryNeed, available: int, cap: int = MAX_KV_BYTES) -> int:
    """How many KV pages to allocate with `available` bytes at hand, weights not yet loaded.

    `KV_SHARE` of what the weights leave, at most `cap` bytes. Raises ModelError where not even one
    page fits.
    """
    pages = min(int((available - need.weights) * KV_SHARE), cap) // need.page
    if pages < 1:
        raise ModelError(
            f"the model needs {_mib(need.weights)} for its weights and {_mib(need.page)} "
            f"a KV page, but this process may use {_mib(available)}: free memory, raise the "
            "container's limit or take a smaller model"
        )
    return pages


def pages_for_tokens(n_tokens: int, page_size: int) -> int:
    """Pages that hold `n_tokens`, rounded up."""
    return -(-n_tokens // page_size)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes this process can still take: the tightest cgroup limit (v2 or v1) or free memory.

    `root` is where `proc` and `sys` are mounted; tests give a folder.
    """
    found = [_free_memory(root), *_cgroup_v2(root), *_cgroup_v1(root)]
    known = [n_bytes for n_bytes in found if n_bytes is not None]
    return max(0, min(known)) if known else ASSUMED_BYTES


def _free_memory(root: Path) -> int | None:
    """MemAvailable; half the machine's memory where /proc is missing (macOS)."""
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_v2(root: Path) -> list[int]:
    """Room under each limit from this process's group up to the mount: all of them bind."""
    base = root / "sys/fs/cgroup"
    return [
        room
        for group in _groups(base, _own_group(root, ""))
        if (room := _room(group, "memory.max", "memory.current", "inactive_file")) is not None
    ]


def _cgroup_v1(root: Path) -> list[int]:
    base = root / "sys/fs/cgroup/memory"
    files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return [
        room
        for group in _groups(base, _own_group(root, "memory"))
        if (room := _room(group, *files)) is not None
    ]


def _own_group(root: Path, controller: str) -> str:
    """This process's path in a hierarchy; lines read `id:controllers:path`, v2 has none named."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return "/"


def _groups(base: Path, own: str) -> list[Path]:
    """The group's folder and its parents up to `base`. In a container the path may not exist."""
    parts = [part for part in own.split("/") if part and part != ".."]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _room(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    """Limit minus use, where there is a limit; file cache the kernel would drop is not use."""
    limit = _text(group / limit_file).strip()
    if not limit.isdigit() or int(limit) >= 1 << 60:  # "max", or v1's way to say it
        return None
    usage = _text(group / usage_file).strip()
    used = int(usage) if usage.isdigit() else 0
    for line in _text(group / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == reclaimable and value.strip().isdigit():
            used -= int(value)
    return int(limit) - max(used, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
