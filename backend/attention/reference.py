"""Paged attention in plain torch: the oracle, and the path for a CPU without compiled kernels.

Rows of one token are batched by similar length into one padded call; longer rows run one by one.
All index tensors and masks are built once a step for each window among its layers; a window that
cuts nothing off in a step shares those of the layers that see everything. Knows only slots and
tensors. Made by `runner/load.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from .interface import PLAIN, RowShape, ScoreRule

Where = slice | torch.Tensor
"""Slots of a sequence: a run of neighbours is read in place, anything else is gathered."""


class ReferenceAttention:
    """Implements `interface.Attention`."""

    def __init__(self, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`, `device`: those of the tensors that will be attended."""
        self._page_size = page_size
        self._dtype = dtype
        self._device = device

    def plan(
        self, rows: Sequence[RowShape], rules: Sequence[ScoreRule] = (PLAIN,)
    ) -> ReferenceStep:
        """See `interface.Attention`. Cost: linear in the context, but for masks of long rows."""
        laid = []
        at = 0
        for row in rows:
            laid.append(_Laid(at, row, self._slots(row)))
            at += row.n_tokens
        stored = np.concatenate([one.slots[one.row.start :] for one in laid])
        longest = max(len(one.slots) for one in laid)
        # torch's kernel has no soft cap: our own needs the causal mask spelled out.
        spelled = any(rule.softcap is not None for rule in rules)
        parts: dict[int | None, _Parts] = {}
        for window in {rule.window: None for rule in rules}:
            effective = None if window is None or window >= longest else window
            if effective not in parts:
                parts[effective] = self._parts(laid, effective, spelled)
            parts[window] = parts[effective]
        return ReferenceStep(self._where(stored), parts)

    def _parts(self, laid: Sequence[_Laid], window: int | None, spelled: bool) -> _Parts:
        """Every row's share under one window."""
        chunks: list[_Chunk] = []
        buckets: dict[int, list[tuple[int, np.ndarray]]] = {}
        for one in laid:
            # Nobody in the row sees a position at or below start - window.
            low = 0 if window is None else max(0, one.row.start - window + 1)
            slots, n = one.slots[low:], one.row.n_tokens
            if n == 1:
                # Powers of two bound the padding to half of what is read.
                buckets.setdefault(len(slots).bit_length(), []).append((one.at, slots))
            else:
                mask = self._mask(one.row, low, window, spelled)
                chunks.append(_Chunk(one.at, one.at + n, self._where(slots), mask))
        n_tokens = laid[-1].at + laid[-1].row.n_tokens
        return _Parts(chunks, [self._single(bucket, n_tokens) for bucket in buckets.values()])

    def _slots(self, row: RowShape) -> np.ndarray:
        n_slots = row.start + row.n_tokens
        n_pages = -(-n_slots // self._page_size)
        assert row.n_tokens >= 1 and len(row.pages) >= n_pages, "a row without room"
        pages = np.asarray(row.pages[:n_pages], dtype=np.int64) * self._page_size
        return (pages[:, None] + np.arange(self._page_size)).reshape(-1)[:n_slots]

    def _where(self, slots: np.ndarray) -> Where:
        first, last = int(slots[0]), int(slots[-1])
        if last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
            return slice(first, last + 1)
        return torch.from_numpy(slots).to(self._device)

    def _mask(
        self, row: RowShape, low: int, window: int | None, spelled: bool
    ) -> torch.Tensor | None:
        """Additive mask [n_tokens, start + n_tokens - low] over positions from `low` on.

        None where all is causal from position 0, unless it must be `spelled` out.
        """
        n, start = row.n_tokens, row.start
        cut = window is not None and window < start + n
        if row.parents is None and start == 0 and not cut and not spelled:
            return None
        seen = np.ones((n, start + n - low), dtype=bool)
        seen[:, start - low :] = np.tri(n, dtype=bool) if row.parents is None else tree(row.parents)
        if cut:
            assert window is not None
            depth = np.arange(n) if row.parents is None else depths(row.parents)
            positions = np.concatenate([np.arange(low, start), start + depth])
            seen &= positions[None, :] > (start + depth)[:, None] - window
        return self._additive(seen)

    def _single(self, bucket: list[tuple[int, np.ndarray]], n_tokens: int) -> _Single:
        """One-token rows of similar length, padded to the longest."""
        width = max(len(slots) for _, slots in bucket)
        if len(bucket) == 1:
            where, mask = self._where(bucket[0][1]), None
        else:
            padded = np.empty((len(bucket), width), dtype=np.int64)
            seen = np.zeros((len(bucket), width), dtype=bool)
            for i, (_, slots) in enumerate(bucket):
                padded[i, : len(slots)] = slots
                # Padding repeats the row's own slot: what it reads may be NaN only if the row
                # itself is, for a masked NaN still spoils a sum.
                padded[i, len(slots) :] = slots[-1]
                seen[i, : len(slots)] = True
            where = torch.from_numpy(padded.reshape(-1)).to(self._device)
            mask = None if seen.all() else self._additive(seen)[:, None, None, :]
        everyone = len(bucket) == n_tokens
        picked = torch.tensor([at for at, _ in bucket], device=self._device)
        return _Single(None if everyone else picked, len(bucket), width, where, mask)

    def _additive(self, seen: np.ndarray) -> torch.Tensor:
        mask = torch.zeros(seen.shape, dtype=self._dtype)
        return mask.masked_fill_(torch.from_numpy(~seen), float("-inf")).to(self._device)


def tree(parents: Sequence[int]) -> np.ndarray:
    """[n, n] booleans: token i sees its ancestors and itself. Parents stand before children."""
    seen = np.zeros((len(parents), len(parents)), dtype=bool)
    for i, parent in enumerate(parents):
        assert -1 <= parent < i, "a parent must stand before its child"
        if parent >= 0:
            seen[i] = seen[parent]
        seen[i, i] = True
    return seen


def depths(parents: Sequence[int]) -> np.ndarray:
    """[n] int64: how many ancestors each token has. Parents stand before children."""
    found = np.zeros(len(parents), dtype=np.int64)
    for i, parent in enumerate(parents):
        found[i] = found[parent] + 1 if parent >= 0 else 0
    return found


@dataclass(frozen=True, slots=True)
class _Laid:
    """A row, the step's index of its first token, and the slots of all its positions."""

    at: int
    row: RowShape
    slots: np.ndarray


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A row of several tokens: tokens [low, high) of the step attend to slots `where`."""

    low: int
    high: int
    where: Where
    mask: torch.Tensor | None

    def run(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, rule: ScoreRule
    ) -> torch.Tensor:
        n_heads, n_kv = q.shape[1], k_cache.shape[1]
        n = self.high - self.low
        heads = q[self.low : self.high].view(n, n_kv, n_heads // n_kv, -1).permute(1, 2, 0, 3)
        shape = (-1, n_heads // n_kv, -1, -1)  # one key/value head is seen by its whole group
        k = _read(k_cache, self.where).transpose(0, 1).unsqueeze(1).expand(shape)
        v = _read(v_cache, self.where).transpose(0, 1).unsqueeze(1).expand(shape)
        out = _attend(heads, k, v, self.mask, rule, is_causal=self.mask is None)
        return out.permute(2, 0, 1, 3).reshape(n, n_heads, -1)


@dataclass(frozen=True, slots=True)
class _Single:
    """`n` rows of one token, each over `width` slots. `picked` None: they are the whole step."""

    picked: torch.Tensor | None
    n: int
    width: int
    where: Where
    mask: torch.Tensor | None

    def run(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, rule: ScoreRule
    ) -> torch.Tensor:
        n_heads, n_kv = q.shape[1], k_cache.shape[1]
        mine = q if self.picked is None else q.index_select(0, self.picked)
        # A group's query heads stand in for query positions: torch's kernel then reads K and V
        # once a group, four to eight times faster than with enable_gqa in bfloat16.
        heads = mine.view(self.n, n_kv, n_heads // n_kv, -1)
        k = _read(k_cache, self.where).view(self.n, self.width, n_kv, -1).transpose(1, 2)
        v = _read(v_cache, self.where).view(self.n, self.width, n_kv, -1).transpose(1, 2)
        out = _attend(heads, k, v, self.mask, rule)
        return out.reshape(self.n, n_heads, -1)


@dataclass(frozen=True, slots=True)
class _Parts:
    """All rows of a step under one window."""

    chunks: list[_Chunk]
    single: list[_Single]


class ReferenceStep:
    """Implements `interface.StepAttention`."""

    def __init__(self, stored: Where, parts: dict[int | None, _Parts]) -> None:
        """`stored`: slots of the step's tokens, in order. `parts`: one a planned window."""
        self._stored = stored
        self._parts = parts

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        rule: ScoreRule = PLAIN,
    ) -> torch.Tensor:
        """See `interface.StepAttention`."""
        k_cache[self._stored] = k
        v_cache[self._stored] = v
        parts = self._parts[rule.window]
        if len(parts.chunks) + len(parts.single) == 1:
            return (parts.chunks or parts.single)[0].run(q, k_cache, v_cache, rule)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for chunk in parts.chunks:
            out[chunk.low : chunk.high] = chunk.run(q, k_cache, v_cache, rule)
        for single in parts.single:
            assert single.picked is not None, "a lone bucket returned above"
            out.index_copy_(0, single.picked, single.run(q, k_cache, v_cache, rule))
        return out


def _read(cache: torch.Tensor, where: Where) -> torch.Tensor:
    return cache[where] if isinstance(where, slice) else cache.index_select(0, where)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    rule: ScoreRule,
    is_causal: bool = False,
) -> torch.Tensor:
    """q [..., n, head_dim] over k, v [..., length, head_dim]; `mask` is added to the scores."""
    if rule.softcap is None:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=rule.scale
        )
    assert not is_causal, "a step with a cap was planned with its masks spelled out"
    scale = q.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores = (q @ k.transpose(-1, -2)).float() * scale
    scores = (scores / rule.softcap).tanh_().mul_(rule.softcap)
    if mask is not None:
        scores += mask
    return scores.softmax(-1).to(v.dtype) @ v
