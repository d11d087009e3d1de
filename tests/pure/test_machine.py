"""What a process may use: read from a made-up /proc and control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from branchwork.backend.machine import look

CPUINFO = """processor : 0
model name : Fast Chip 9000
flags : fpu avx2 fma avx512_vnni
processor : 1
model name : Fast Chip 9000
flags : fpu avx2 fma avx512_vnni
"""


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_facts_are_read_from_proc(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:   2048 kB\n"})
    found = look(tmp_path)
    assert found.cpu == "Fast Chip 9000"
    assert found.instruction_sets == ("avx2", "fma", "avx512_vnni")
    assert (found.memory_bytes, found.memory_from) == (2048 << 10, "machine")
    assert found.cores >= 1


@pytest.mark.parametrize("where", ["sys/fs/cgroup/a/b", "sys/fs/cgroup/a", "sys/fs/cgroup"])
def test_a_limit_on_any_group_above_us_binds(tmp_path: Path, where: str) -> None:
    files = {
        "proc/meminfo": "MemTotal: 2048 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        f"{where}/memory.max": f"{1 << 20}\n",
        f"{where}/cpu.max": "100000 100000\n",
    }
    found = look(plant(tmp_path, files))
    assert (found.memory_bytes, found.memory_from) == (1 << 20, "control group")
    assert found.cores == 1


def test_the_first_generation_of_control_groups_is_understood(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 2048 kB\n",
        "proc/self/cgroup": "7:memory,hugetlb:/box\n3:cpu:/box\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{1 << 19}\n",
    }
    assert look(plant(tmp_path, files)).memory_bytes == 1 << 19


def test_a_limit_above_the_machine_is_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 2048 kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{1 << 60}\n",
    }
    found = look(plant(tmp_path, files))
    assert (found.memory_bytes, found.memory_from) == (2048 << 10, "machine")


def test_a_system_without_proc_still_has_facts(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found.cores >= 1
    assert found.cpu
    assert found.instruction_sets == ()
