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
    max_waiting: int = 65536
    max_overtakes: int = 64
    reserve_tokens: int = 64
    defer_twins: bool = True
    max_trie_tokens: int = 4096

    def __post_init__(self) -> None:
        """Refuse limits under which nothing, or not everybody, would ever move."""
        for name in ("page_size", "step_tokens", "max_running", "max_waiting", "max_overtakes"):
            whole_number(name, getattr(self, name), 1)
        whole_number("reserve_tokens", self.reserve_tokens, 0)
        whole_number("max_trie_tokens", self.max_trie_tokens, 1)
        if self.chunk_tokens is not None:
            whole_number("chunk_tokens", self.chunk_tokens, 1)
        if self.step_tokens < self.max_running:
            raise InvalidRequest(
                "step_tokens must be at least max_running, so that every running sequence can draw "
                f"in every step; found {self.step_tokens} and {self.max_running}"
            )


def whole_number(name: str, value: object, least: int) -> None:
    """Raise InvalidRequest unless `value` is an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidRequest(f"{name} must be a whole number of {least} or more, found {value!r}")


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
        if not isinstance(self.model, str) or not self.model:
            raise InvalidRequest(f"model must be a name or a path, found {self.model!r}")
        if self.dtype not in DTYPES:
            raise InvalidRequest(f"dtype must be one of {', '.join(DTYPES)}, found {self.dtype!r}")
        if not isinstance(self.scheduler, SchedulerConfig):
            raise InvalidRequest(f"scheduler must be a SchedulerConfig, found {self.scheduler!r}")
        if self.kv_tokens is not None:
            whole_number("kv_tokens", self.kv_tokens, self.scheduler.page_size)
