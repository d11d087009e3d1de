"""Settings that cannot work are refused before anything is built, by name."""

from __future__ import annotations

from typing import Any

import pytest

from branchwork.backend.config import EngineConfig, SchedulerConfig
from branchwork.lang.errors import InvalidRequest


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"page_size": 0}, "page_size"),
        ({"page_size": 16.0}, "page_size"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"max_trie_tokens": -1}, "max_trie_tokens"),
        ({"reserve_tokens": True}, "reserve_tokens"),
        ({"step_tokens": 8, "max_running": 9}, "step_tokens must be at least max_running"),
    ],
)
def test_scheduler_limits_that_cannot_work(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        SchedulerConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"model": None}, "model must be a name or a path"),
        ({"dtype": "float16"}, "dtype must be one of auto, float32, bfloat16"),
        ({"kv_tokens": 15}, "kv_tokens must be a whole number of 16 or more, found 15"),
        ({"kv_tokens": 1500.0}, "kv_tokens"),
        ({"kv_tokens": "x"}, "kv_tokens"),
        ({"scheduler": 5}, "scheduler must be a SchedulerConfig"),
    ],
)
def test_engine_settings_that_cannot_work(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        EngineConfig(**settings)
