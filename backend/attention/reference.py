"""Paged attention in plain torch: the oracle, and the path for a CPU without compiled kernels.

Rows of one token are batched by similar length into one padded call; longer rows run one by one.
All index tensors and masks are built once a step. Knows only slots and tensors. Made by
`runner/load.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from .interface import RowShape

Where = slice | torch.Tensor
"""Slots of a sequence: a run of neighbours is read in place, anything else is gathered."""


class ReferenceAttention:
    """Implements `interface.Attention`."""

    def __init__(self, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`, `device`: those of the tensors that will be attended."""
        self._page_size = page_size
        self._dtype = dtype
        self._device = device

    def plan(self, rows: Sequence[RowShape]) -> ReferenceStep:
        """See `interface.Attention`. Cost: linear in the context, but for masks of long rows."""
        stored: list[np.ndarray] = []
        chunks: list[_Chunk] = []
        buckets: dict[int, list[tuple[int, np.ndarray]]] = {}
        at = 0
        for row in rows:
            slots = self._slots(row)
            stored.append(slots[row.start :])
            if row.n_tokens == 1:
                # Powers of two bound the padding to half of what is read.
                buckets.setdefault(len(slots).bit_length(), []).append((at, slots))
            else:
                mask = self._mask(row)
                chunks.append(_Chunk(at, at + row.n_tokens, self._where(slots), mask))
            at += row.n_tokens
        single = [self._single(bucket, at) for bucket in buckets.values()]
        return ReferenceStep(self._where(np.concatenate(stored)), chunks, single)

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

    def _mask(self, row: RowShape) -> torch.Tensor | None:
        """Additive mask [n_tokens, start + n_tokens]; None where all is causal from position 0."""
        if row.parents is None and row.start == 0:
            return None
        n = row.n_tokens
        seen = np.ones((n, row.start + n), dtype=bool)
        seen[:, row.start :] = np.tri(n, dtype=bool) if row.parents is None else tree(row.parents)
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


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A row of several tokens: tokens [low, high) of the step attend to slots `where`."""

    low: int
    high: int
    where: Where
    mask: torch.Tensor | None

    def run(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        n_heads, n_kv = q.shape[1], k_cache.shape[1]
        n = self.high - self.low
        heads = q[self.low : self.high].view(n, n_kv, n_heads // n_kv, -1).permute(1, 2, 0, 3)
        shape = (-1, n_heads // n_kv, -1, -1)  # one key/value head is seen by its whole group
        k = _read(k_cache, self.where).transpose(0, 1).unsqueeze(1).expand(shape)
        v = _read(v_cache, self.where).transpose(0, 1).unsqueeze(1).expand(shape)
        out = scaled_dot_product_attention(
            heads, k, v, attn_mask=self.mask, is_causal=self.mask is None
        )
        return out.permute(2, 0, 1, 3).reshape(n, n_heads, -1)


@dataclass(frozen=True, slots=True)
class _Single:
    """`n` rows of one token, each over `width` slots. `picked` None: they are the whole step."""

    picked: torch.Tensor | None
    n: int
    width: int
    where: Where
    mask: torch.Tensor | None

    def run(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        n_heads, n_kv = q.shape[1], k_cache.shape[1]
        mine = q if self.picked is None else q.index_select(0, self.picked)
        # A group's query heads stand in for query positions: torch's kernel then reads K and V
        # once a group, four to eight times faster than with enable_gqa in bfloat16.
        heads = mine.view(self.n, n_kv, n_heads // n_kv, -1)
        k = _read(k_cache, self.where).view(self.n, self.width, n_kv, -1).transpose(1, 2)
        v = _read(v_cache, self.where).view(self.n, self.width, n_kv, -1).transpose(1, 2)
        out = scaled_dot_product_attention(heads, k, v, attn_mask=self.mask)
        return out.reshape(self.n, n_heads, -1)


class ReferenceStep:
    """Implements `interface.StepAttention`."""

    def __init__(self, stored: Where, chunks: list[_Chunk], single: list[_Single]) -> None:
        """`stored`: slots of the step's tokens, in order."""
        self._stored = stored
        self._chunks = chunks
        self._single = single

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> torch.Tensor:
        """See `interface.StepAttention`."""
        k_cache[self._stored] = k
        v_cache[self._stored] = v
        if len(self._chunks) + len(self._single) == 1:
            return (self._chunks or self._single)[0].run(q, k_cache, v_cache)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for chunk in self._chunks:
            out[chunk.low : chunk.high] = chunk.run(q, k_cache, v_cache)
        for single in self._single:
            assert single.picked is not None, "a lone bucket returned above"
            out.index_copy_(0, single.picked, single.run(q, k_cache, v_cache))
        return out


def _read(cache: torch.Tensor, where: Where) -> torch.Tensor:
    return cache[where] if isinstance(where, slice) else cache.index_select(0, where)
