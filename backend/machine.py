"""What this process may use of the machine: cores, memory, instruction sets.

Standard library only; reads /proc and the control group where there are any and falls back to what
Python knows elsewhere. Knows no model and no engine. Called by `build.py` and `branchwork env`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

# The ones a kernel of ours or of torch picks its path by; names as Linux writes them.
_WATCHED = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)

# Both generations of control groups: limit, use, and what the kernel would drop to make room.
_ACCOUNTS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

ASSUMED_BYTES = 4 << 30
"""Taken as free where the system says nothing."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts. `cores` and `memory_bytes` are what this process may use, not what is built in."""

    system: str
    cpu: str
    cores: int
    instruction_sets: tuple[str, ...]
    memory_bytes: int | None
    memory_from: str


def look(root: Path = Path("/")) -> Machine:
    """Read the facts. `root` is the folder that holds proc/ and sys/ (tests give another)."""
    info = _fields(root / "proc/cpuinfo")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    memory, source = _memory(root)
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cores=_cores(root),
        instruction_sets=tuple(name for name in _WATCHED if name in flags),
        memory_bytes=memory,
        memory_from=source,
    )


def _cores(root: Path) -> int:
    """Cores this process is scheduled on, cut to the control group's share of them."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        quota = _read(folder / "cpu.max").split()
        if len(quota) == 2 and quota[0].isdigit() and int(quota[1]):
            cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes this process can still take: the tightest control group's room, or free memory.

    0 where a group is over its limit already. `root` as for `look`.
    """
    free = _fields(root / "proc/meminfo").get("MemAvailable", "")
    physical = _physical()
    found = [int(free.split()[0]) << 10 if free else (physical and physical // 2) or ASSUMED_BYTES]
    for folder in _groups(root, "memory"):
        for limit, used, reclaimable in _ACCOUNTS:
            if (n_bytes := _limit(folder / limit)) is not None:
                stat = _fields(folder / "memory.stat", " ")
                busy = _number(_read(folder / used)) - _number(stat.get(reclaimable, ""))
                found.append(n_bytes - max(busy, 0))
    return max(0, min(found))


def _memory(root: Path) -> tuple[int | None, str]:
    """Bytes, and where the tightest limit stands: the machine, or a control group above us."""
    total = _fields(root / "proc/meminfo").get("MemTotal", "")
    least = int(total.split()[0]) << 10 if total else _physical()
    source = "machine"
    for folder in _groups(root, "memory"):
        for name, _, _ in _ACCOUNTS:
            limit = _limit(folder / name)
            if limit is not None and (least is None or limit < least):
                least, source = limit, "control group"
    return least, source


def _limit(path: Path) -> int | None:
    """A control group's memory limit; "max", and the first generation's huge number, are none."""
    text = _read(path).strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _groups(root: Path, controller: str) -> list[Path]:
    """Our control group and all above it: a limit anywhere on the way binds us.

    The mount itself where it is not told which group is ours.
    """
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    mount = root / "sys/fs/cgroup"
    return found or [mount, mount / controller]


def _fields(path: Path, mark: str = ":") -> dict[str, str]:
    """`name : value` lines; of repeated names (one block a core) the first counts."""
    fields: dict[str, str] = {}
    for line in _read(path).splitlines():
        name, found, value = line.partition(mark)
        if found:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
