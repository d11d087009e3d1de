"""Obeys step plans: copies, one forward pass, draws and scores.

`forward` computes numbers, `sample` turns them into tokens; between the two the engine may prepare
what `sample` needs. Knows neither requests nor the cache. Made by `load.py`, driven by the engine
loop, from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...lang.errors import EngineClosed
from ..attention.interface import Attention
from ..model.decoder import Decoder
from ..model.spec import ModelSpec
from ..sched.plan import RowResult, StepPlan, StepResult
from .batch import Scores, StepInputs, build_inputs
from .kv import KvPool
from .sampler import NOT_FINITE, sample

SCORE_ROWS = 128
"""Positions whose logits are held at once for scoring: 25 MB at 49,152 tokens of vocabulary."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A step that was computed but not sampled.

    `logits` [D, vocab] float32, one row a draw. `logprobs`: the plan's scores, all rows' pairs in
    plan order, still on the device.
    """

    inputs: StepInputs
    n_rows: int
    logits: torch.Tensor
    logprobs: torch.Tensor


class Runner:
    """Owns the decoder and the KV pool of one model."""

    def __init__(self, decoder: Decoder, attention: Attention, pool: KvPool) -> None:
        """All three share one device and dtype."""
        self.spec: ModelSpec = decoder.spec
        self.page_size: int = pool.page_size
        self.n_pages: int = pool.n_pages
        self._decoder: Decoder | None = decoder
        self._pool: KvPool | None = pool
        self._attention = attention

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Pending | None:
        """Run a plan's copies, then all its rows in one pass. KV of every row is stored.

        None for a plan of copies alone.
        """
        decoder, pool = self._parts()
        pool.copy(plan.copies)
        if not plan.rows:
            return None
        inputs = build_inputs(plan, decoder.device)
        step = self._attention.plan(inputs.rows, decoder.rules)
        hidden = decoder.forward(inputs.tokens, inputs.positions, step, pool.tensor)
        logits = decoder.logits(hidden.index_select(0, inputs.draw_at))
        logprobs = _score(decoder, hidden, inputs.scores)
        return Pending(inputs, len(plan.rows), logits, logprobs)

    @torch.inference_mode()
    def sample(self, pending: object) -> StepResult:
        """Draw what the plan asked for. Rows with numbers that are not finite fail alone.

        `pending` is what `forward` returned; the loop passes it through unseen.
        """
        if pending is None:
            return StepResult(())
        assert isinstance(pending, Pending), "not a step of this runner"
        inputs = pending.inputs
        drawn = dict(zip(inputs.draw_rows, sample(pending.logits, inputs.draws), strict=True))
        scores = _by_row(pending.logprobs.tolist(), inputs.scores, pending.n_rows)
        failed = {i for i, row in enumerate(scores) if not all(map(_finite, row))}
        results = []
        for i in range(pending.n_rows):
            draw = drawn.get(i)
            if i in failed or (draw is not None and draw.error is not None):
                results.append(RowResult(error=NOT_FINITE))
            elif draw is None:
                results.append(RowResult(scores=scores[i]))
            else:
                results.append(RowResult(draw.token, draw.logprob, scores[i], draw.top))
        return StepResult(tuple(results))

    def close(self) -> None:
        """Let go of weights and KV. Idempotent; `forward` then raises EngineClosed."""
        self._decoder = None
        self._pool = None

    def _parts(self) -> tuple[Decoder, KvPool]:
        if self._decoder is None or self._pool is None:
            raise EngineClosed("the runner was closed; start a new engine")
        return self._decoder, self._pool


def _score(decoder: Decoder, hidden: torch.Tensor, scores: Scores | None) -> torch.Tensor:
    """Wanted log-probabilities [pairs] float32 in the plan's order, a bounded piece at a time."""
    if scores is None:
        return hidden.new_empty(0, dtype=torch.float32)
    found = hidden.new_empty(len(scores.at), dtype=torch.float32)
    order = torch.from_numpy(scores.order).to(hidden.device)
    at = torch.from_numpy(scores.at).to(hidden.device)
    for first in range(0, len(scores.positions), SCORE_ROWS):
        piece = scores.positions[first : first + SCORE_ROWS]
        low = int(scores.at.searchsorted(first))
        high = int(scores.at.searchsorted(first + len(piece)))
        raw = decoder.logits(hidden.index_select(0, piece)).log_softmax(-1)
        found[order[low:high]] = raw[at[low:high] - first, scores.ids[low:high]]
    return found


def _by_row(flat: Sequence[float], scores: Scores | None, n_rows: int) -> list[tuple[float, ...]]:
    if scores is None:
        return [()] * n_rows
    rows, at = [], 0
    for count in scores.counts:
        rows.append(tuple(flat[at : at + count]))
        at += count
    return rows


def _finite(value: float) -> bool:
    return value - value == 0.0
