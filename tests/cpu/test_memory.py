"""How much memory the pool may take, from faked accounting files."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from branchwork.backend.runner.kv import KvPool
from branchwork.backend.runner.load import memory_need
from branchwork.backend.runner.memory import (
    MemoryNeed,
    available_bytes,
    pages_for,
    pages_for_tokens,
)
from branchwork.lang.errors import InvalidRequest, ModelError

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def meminfo(root: Path, gib: int) -> None:
    text = f"MemTotal: {64 << 20} kB\nMemAvailable: {gib << 20} kB\n"
    write(root, {"proc/meminfo": text})


def test_free_memory_counts_where_no_limit_is_set(tmp_path: Path) -> None:
    meminfo(tmp_path, 6)
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "max\n"})
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
    write(tmp_path, files)
    assert available_bytes(tmp_path) == 2 * GIB  # 4 - (3 - 1 reclaimable)


def test_inside_a_container_the_limit_at_the_mount_binds(tmp_path: Path) -> None:
    """The group's path is the host's and does not exist below the container's mount."""
    meminfo(tmp_path, 32)
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/box\n",
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
    }
    write(tmp_path, files)
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
    write(tmp_path, files)
    assert available_bytes(tmp_path) == 2 * GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    meminfo(tmp_path, 32)
    base = "sys/fs/cgroup"
    write(tmp_path, {f"{base}/memory.max": "100\n", f"{base}/memory.current": "200\n"})
    assert available_bytes(tmp_path) == 0


def test_a_system_without_accounting_files_still_gets_a_number(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 0


def test_the_pool_takes_half_of_what_the_weights_leave_up_to_the_cap() -> None:
    need = MemoryNeed(weights=2 * GIB, page=1 << 20)
    assert pages_for(need, 4 * GIB) == 1024
    assert pages_for(need, 100 * GIB) == 4096
    assert pages_for(need, 100 * GIB, cap=1 << 20) == 1


def test_too_little_memory_is_refused_with_the_figures() -> None:
    with pytest.raises(ModelError, match=r"2,048.0 MiB for its weights .* may use 1,024.0 MiB"):
        pages_for(MemoryNeed(weights=2 * GIB, page=1 << 20), GIB)


def test_pages_cover_a_token_count() -> None:
    assert [pages_for_tokens(n, 16) for n in (1, 16, 17, 32)] == [1, 1, 2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_need_equals_what_is_allocated(dtype: str) -> None:
    need = memory_need(tiny.SPEC, dtype, page_size=4)
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    weights = tiny.tiny_weights(dtype=kind)
    matrices = [weights.embed, weights.final_norm]
    for layer in weights.layers:
        matrices += [layer.attn_norm, layer.qkv, layer.o, layer.ffn_norm]
        matrices += [layer.gate_up, layer.down]
    assert need.weights == sum(matrix.nbytes for matrix in matrices)
    assert need.page == KvPool(tiny.SPEC, 1, 4, kind, torch.device("cpu")).tensor.nbytes


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="float32, bfloat16, found 'int7'"):
        memory_need(tiny.SPEC, "int7", 16)
