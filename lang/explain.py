"""The cache report of a run: one record a call, and what sharing saved. Values, printable.

Made by `state.explain()` from settled slots; printed by programs and the CLI.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from . import ir
from .errors import Cancelled
from .slot import Slot


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call, all its samples together. `call` is its name and branch, as in "draft[1]".

    `kind` is "gen" or "select".

    `finish_reason` is the finish's, or "failed", "cancelled" or "pending". Tokens and seconds are
    those of `request.Usage`; 0 where the call did not finish.
    """

    call: str
    kind: str
    where: str
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token: float = 0.0
    seconds: float = 0.0


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """What sharing saved: of `prompt_tokens` sent by `calls` calls, `cached_tokens` were reused."""

    calls: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int

    @property
    def share(self) -> float:
        """Part of the prompt tokens that was not computed again, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def __str__(self) -> str:
        return (
            f"sharing saved {self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens "
            f"({self.share:.0%}) in {self.calls:,} calls"
        )


class Report(msgspec.Struct, frozen=True):
    """The calls of a run, in the order the program made them. `str()` is a table."""

    records: tuple[CallRecord, ...]

    @property
    def savings(self) -> Savings:
        """The sum over all records."""
        return savings(self.records)

    def __str__(self) -> str:
        return "\n".join([*_table(self.records), str(self.savings)])


def savings(records: Iterable[CallRecord]) -> Savings:
    """Sum up records, of one run or of many."""
    rows = tuple(records)
    return Savings(
        calls=len(rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        computed_tokens=sum(row.computed_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
    )


def record(slot: Slot) -> CallRecord:
    """The record of a call's slot, whatever became of it."""
    assert slot.node is not None
    kind = "select" if isinstance(slot.node, ir.Select) else "gen"
    name, where = (slot.node.name or kind) + slot.place.label(), slot.node.where
    if slot.meta is None:
        cancelled = slot.error is not None and isinstance(slot.error.__cause__, Cancelled)
        ended = "cancelled" if cancelled else "failed" if slot.done else "pending"
        return CallRecord(call=name, kind=kind, where=where, finish_reason=ended)
    meta = slot.meta
    samples = meta.samples or (meta,)
    return CallRecord(
        call=name,
        kind=kind,
        where=where,
        finish_reason=meta.finish_reason,
        prompt_tokens=sum(each.prompt_tokens for each in samples),
        cached_tokens=sum(each.cached_tokens for each in samples),
        computed_tokens=sum(each.computed_tokens for each in samples),
        completion_tokens=sum(each.completion_tokens for each in samples),
        time_to_first_token=meta.time_to_first_token,
        seconds=max(each.seconds for each in samples),
    )


_TITLES = ("call", "where", "prompt", "cached", "computed", "generated", "seconds", "finish")
_LEFT = (0, 1, 7)


def _table(records: tuple[CallRecord, ...]) -> list[str]:
    rows = [_TITLES]
    for each in records:
        numbers = (each.prompt_tokens, each.cached_tokens, each.computed_tokens)
        texts = tuple(f"{number:,}" for number in (*numbers, each.completion_tokens))
        rows.append(
            (each.call, each.where, *texts, f"{each.seconds:.3f}", each.finish_reason)  # type: ignore[arg-type]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_TITLES))]
    return [
        "  ".join(
            cell.ljust(width) if i in _LEFT else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
