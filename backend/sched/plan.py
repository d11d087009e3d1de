"""What one step computes, and what came of it: frozen values of integers.

Made by `scheduler.py`, obeyed by a runner (`runner/runner.py`, or a fake in tests). There are no
prefill and decode modes: a row says how many of a sequence's tokens to compute now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..port import Rules


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy KV rows `[src_row, src_row + n)` of page `src` to page `dst` from row `dst_row` on.

    For all layers. All copies of a plan read before any of them writes, and run before its rows.
    """

    src: int
    src_row: int
    dst: int
    dst_row: int
    n: int


@dataclass(frozen=True, slots=True)
class Past:
    """What penalties want of a sequence so far; empty where no penalty asks.

    `seen`: the distinct ids of prompt and drawn tokens. `drawn`: (id, how often) of the drawn ones.
    """

    seen: tuple[int, ...] = ()
    drawn: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw the token after a row's last one.

    `position` is the drawn token's own. `logprob`: report its log-probability; `top`: and those of
    so many of the likeliest. `banned` ids cannot be drawn.
    """

    rules: Rules
    seed: int
    position: int
    logprob: bool = False
    top: int = 0
    past: Past = Past()
    banned: tuple[int, ...] = ()

    @property
    def takes_largest(self) -> bool:
        """The largest of the model's own logits wins."""
        shifted = self.past.seen or self.past.drawn or self.rules.logit_bias or self.banned
        return self.rules.temperature == 0 and not shifted


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step.

    `tokens` go through the model; the first stands at position `start`, everything before it has
    KV in `pages` (position p lives in `pages[p // page_size]`, row `p % page_size`; `pages` covers
    `start + len(tokens)` slots and must not be changed or kept by the runner).
    `parents` is None for a plain run. Otherwise `parents[i]` < i is the row index of token i's
    parent, -1 where it follows position `start - 1`: a token attends to all positions before
    `start`, its ancestors and itself; its rotary position is `start` + its depth; its KV still
    goes to slot `start + i`.
    `scores`: pairs (row index, token id) whose log-probability p(token id | up to that row) is
    wanted. `draw`: draw a token from the last position's distribution.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    parents: tuple[int, ...] | None = None
    scores: tuple[tuple[int, int], ...] = ()
    draw: Draw | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Copies first, then all rows in one batch. Never empty, but there may be copies alone."""

    rows: tuple[Row, ...]
    copies: tuple[Copy, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Tokens that go through the model in this step."""
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """`token` where the row had a draw; `logprob` and `top` where it asked; `scores` in row order.

    `top`: (id, log-probability) of the likeliest tokens, the likeliest first. `error` says
    why this row alone has failed (its numbers are not finite); the rest is then empty.
    """

    token: int | None = None
    logprob: float | None = None
    scores: tuple[float, ...] = ()
    top: tuple[tuple[int, float], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One result a row, in the plan's order."""

    rows: tuple[RowResult, ...]
