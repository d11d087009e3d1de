"""A step plan (integers) becomes the inputs of one forward pass.

Knows the plan's meaning and nothing of models or samplers. Called by `runner.py` once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..attention.interface import RowShape
from ..sched.plan import Draw, Row, StepPlan


@dataclass(frozen=True, slots=True)
class Scores:
    """Which log-probabilities are wanted, grouped so that each position is computed once.

    `positions` [P] int64: flat token indices, ascending and distinct. Pair j wants token `ids[j]`
    at `positions[at[j]]`; pairs stand in ascending `at`, and `order[j]` is pair j's place in the
    plan's own order. `counts`: pairs a row.
    """

    positions: torch.Tensor
    at: np.ndarray
    ids: torch.Tensor
    order: np.ndarray
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step on the device.

    `tokens`, `positions` [T] int64 over all rows in order; `rows` for attention. `draw_at` [D]:
    flat indices of the last token of each drawing row; `draws` the rules and `draw_rows` the row
    numbers, in that order. `scores` None where none are wanted.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    rows: tuple[RowShape, ...]
    draw_at: torch.Tensor
    draws: tuple[Draw, ...]
    draw_rows: tuple[int, ...]
    scores: Scores | None


def build_inputs(plan: StepPlan, device: torch.device) -> StepInputs:
    """Lay out a plan's rows one after another."""
    ends = np.cumsum([len(row.tokens) for row in plan.rows])
    tokens = np.concatenate([np.asarray(row.tokens, dtype=np.int64) for row in plan.rows])
    positions = np.concatenate([_positions(row) for row in plan.rows])
    drawing = [i for i, row in enumerate(plan.rows) if row.draw is not None]
    return StepInputs(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        rows=tuple(RowShape(len(r.tokens), r.start, r.pages, r.parents) for r in plan.rows),
        draw_at=torch.from_numpy(ends[drawing].astype(np.int64) - 1).to(device),
        draws=tuple(row.draw for row in plan.rows if row.draw is not None),
        draw_rows=tuple(drawing),
        scores=_scores(plan.rows, ends, device),
    )


def _positions(row: Row) -> np.ndarray:
    """Rotary positions: in order, or by depth where the row is a tree."""
    n = len(row.tokens)
    if row.parents is None:
        return np.arange(row.start, row.start + n)
    assert len(row.parents) == n, "one parent a token"
    depths: list[int] = []
    for parent in row.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return np.asarray(depths) + row.start


def _scores(rows: Sequence[Row], ends: np.ndarray, device: torch.device) -> Scores | None:
    wanted = [
        (int(end) - len(row.tokens) + index, token)
        for row, end in zip(rows, ends, strict=True)
        for index, token in row.scores
    ]
    if not wanted:
        return None
    flat = np.asarray(wanted, dtype=np.int64)
    order = np.argsort(flat[:, 0], kind="stable")
    positions, at = np.unique(flat[order, 0], return_inverse=True)
    return Scores(
        positions=torch.from_numpy(positions).to(device),
        at=at,
        ids=torch.from_numpy(flat[order, 1]).to(device),
        order=order,
        counts=tuple(len(row.scores) for row in rows),
    )
