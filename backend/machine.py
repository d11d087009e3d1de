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


def _memory(root: Path) -> tuple[int | None, str]:
    """Bytes, and where the tightest limit stands: the machine, or a control group above us."""
    total = _fields(root / "proc/meminfo").get("MemTotal", "")
    limit = int(total.split()[0]) << 10 if total else _physical()
    source = "machine"
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and (limit is None or int(text) < limit):
                limit, source = int(text), "control group"
    return limit, source


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _groups(root: Path, controller: str) -> list[Path]:
    """Our control group and all above it: a limit anywhere on the way binds us."""
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return found


def _fields(path: Path) -> dict[str, str]:
    """`name : value` lines; of repeated names (one block a core) the first counts."""
    fields: dict[str, str] = {}
    for line in _read(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
