"""How much memory the pool may take."""

from __future__ import annotations

import pytest
import tiny
import torch

from branchwork.backend.runner.kv import KvPool
from branchwork.backend.runner.load import memory_need
from branchwork.backend.runner.memory import (
    MemoryNeed,
    pages_for,
)
from branchwork.lang.errors import InvalidRequest, ModelError

GIB = 1 << 30


def test_the_pool_takes_half_of_what_the_weights_leave_up_to_the_cap() -> None:
    need = MemoryNeed(weights=2 * GIB, page=1 << 20)
    assert pages_for(need, 4 * GIB) == 1024
    assert pages_for(need, 100 * GIB) == 4096
    assert pages_for(need, 100 * GIB, cap=1 << 20) == 1


def test_too_little_memory_is_refused_with_the_figures() -> None:
    with pytest.raises(ModelError, match=r"2,048.0 MiB for its weights .* may use 1,024.0 MiB"):
        pages_for(MemoryNeed(weights=2 * GIB, page=1 << 20), GIB)


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


def test_a_pool_that_cannot_be_allocated_says_how_big_it_would_be() -> None:
    with pytest.raises(ModelError, match=r"GiB and cannot be allocated; lower kv_tokens"):
        KvPool(tiny.SPEC, 1 << 40, 16, torch.float32, torch.device("cpu"))
