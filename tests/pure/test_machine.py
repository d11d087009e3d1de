"""What a process may use: read from a made-up /proc and control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from branchwork.backend.machine import available_bytes, look

GIB = 1 << 30

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


# -- what is left of it --


def meminfo(root: Path, gib: int) -> None:
    text = f"MemTotal: {64 << 20} kB\nMemAvailable: {gib << 20} kB\n"
    plant(root, {"proc/meminfo": text})


def test_free_memory_counts_where_no_limit_is_set(tmp_path: Path) -> None:
    meminfo(tmp_path, 6)
    plant(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "max\n"})
    assert available_bytes(tmp_path) == 6 * GIB


def test_the_tightest_cgroup_v2_limit_above_the_process_binds(tmp_path: Path) -> None:
    meminfo(tmp_path, 32)
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        "sys/fs/cgroup/pod/box/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pod/box/memory.current": f"{GIB}\n",
    }
    plant(tmp_path, files)
    assert available_bytes(tmp_path) == 2 * GIB  # 4 - (3 - 1 reclaimable)


def test_inside_a_container_the_limit_at_the_mount_binds(tmp_path: Path) -> None:
    """The group's path is the host's and does not exist below the container's mount."""
    meminfo(tmp_path, 32)
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/box\n",
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
    }
    plant(tmp_path, files)
    assert available_bytes(tmp_path) == 2 * GIB


def test_a_cgroup_v1_limit_binds_and_its_unlimited_value_does_not(tmp_path: Path) -> None:
    meminfo(tmp_path, 32)
    v1 = "sys/fs/cgroup/memory/box"
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/else\n3:memory:/box\n",
        f"{v1}/memory.limit_in_bytes": f"{3 * GIB}\n",
        f"{v1}/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    plant(tmp_path, files)
    assert available_bytes(tmp_path) == 2 * GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    meminfo(tmp_path, 32)
    base = "sys/fs/cgroup"
    plant(tmp_path, {f"{base}/memory.max": "100\n", f"{base}/memory.current": "200\n"})
    assert available_bytes(tmp_path) == 0


def test_a_system_without_accounting_files_still_gets_a_number(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 0
