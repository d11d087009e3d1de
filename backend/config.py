"""Small frozen settings of an engine. Made by the face or the CLI, read by `build.py`.

Nothing here is filled in later: what depends on the model or the machine is computed by `build.py`
and passed on as plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lang.errors import InvalidRequest

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step and of the queue.

    `page_size`: tokens a KV page. `step_tokens`: tokens a step computes at most (a choice trie may
    exceed it). `chunk_tokens`: tokens one sequence computes in a step at most (None: step_tokens).
    `max_running`: sequences in flight. `max_waiting`: queue length before `Overloaded`.
    `max_overtakes`: later arrivals that may be admitted before a waiting request, after which it is
    next. `reserve_tokens`: when one more is admitted, room is left for this many further tokens of
    each sequence running (fewer: more retractions; more: idle pages). `defer_twins`: a request
    whose uncomputed prefix another is just computing waits for it.
    """

    page_size: int = 16
    step_tokens: int = 512
    chunk_tokens: int | None = None
    max_running: int = 64
    max_waiting: int = 4096
    max_overtakes: int = 64
    reserve_tokens: int = 64
    defer_twins: bool = True
    max_trie_tokens: int = 4096

    def __post_init__(self) -> None:
        """Refuse limits under which nothing, or not everybody, would ever move."""
        for name in ("page_size", "step_tokens", "max_running", "max_waiting", "max_overtakes"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be 1 or more, found {getattr(self, name)}")
        if self.reserve_tokens < 0:
            raise InvalidRequest(f"reserve_tokens must be 0 or more, found {self.reserve_tokens}")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise InvalidRequest(f"chunk_tokens must be 1 or more, found {self.chunk_tokens}")
        if self.step_tokens < self.max_running:
            raise InvalidRequest(
                "step_tokens must be at least max_running, so that every running sequence can draw "
                f"in every step; found {self.step_tokens} and {self.max_running}"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a user may say about an engine.

    `model`: path, alias or hub name. `dtype`: "auto" (float32 on the CPU), "float32", "bfloat16".
    `kv_tokens`: size of the KV pool in tokens, None to size it by the memory this process may use.
    """

    model: str = "smollm2"
    dtype: str = "auto"
    kv_tokens: int | None = None
    scheduler: SchedulerConfig = SchedulerConfig()

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.dtype not in DTYPES:
            raise InvalidRequest(f"dtype must be one of {', '.join(DTYPES)}, found {self.dtype!r}")
        if self.kv_tokens is not None and self.kv_tokens < self.scheduler.page_size:
            raise InvalidRequest(
                f"kv_tokens must hold at least one page of {self.scheduler.page_size} tokens, "
                f"found {self.kv_tokens}"
            )
