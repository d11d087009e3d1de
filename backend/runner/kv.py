"""The owner of the KV tensors.

One tensor, laid out [n_layers, 2, n_slots, n_kv_heads, head_dim]: keys at 0, values at 1, and slot
= page * page_size + row in the page. A layer's keys are contiguous, as attention wants them, and
rows of a page are copied over all layers, keys and values, by one slice operation. Which page
belongs to whom is not known here. Owned by `runner.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...lang.errors import ModelError
from ..model.spec import ModelSpec
from ..sched.plan import Copy


def page_bytes(spec: ModelSpec, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers."""
    return spec.kv_width * page_size * dtype.itemsize


class KvPool:
    """KV of `n_pages` pages. `tensor` is lent to the decoder for the length of a step."""

    def __init__(
        self,
        spec: ModelSpec,
        n_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate. Not cleared: no slot is read before its token was stored."""
        self.n_pages = n_pages
        self.page_size = page_size
        shape = (spec.n_layers, 2, n_pages * page_size, spec.n_kv_heads, spec.head_dim)
        try:
            self.tensor = torch.empty(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            raise ModelError(
                f"a KV pool of {n_pages} pages needs "
                f"{page_bytes(spec, page_size, dtype) * n_pages / 2**30:,.1f} GiB and cannot be "
                "allocated; lower kv_tokens"
            ) from error

    def copy(self, copies: Sequence[Copy]) -> None:
        """Run a plan's copies: all sources are read before any destination is written.

        A slice a copy is quicker than one gather over them all (0.2 ms a page against 0.3).
        """
        rows = [self.tensor[:, :, self._slots(c.src, c.src_row, c.n)].clone() for c in copies]
        for c, source in zip(copies, rows, strict=True):
            self.tensor[:, :, self._slots(c.dst, c.dst_row, c.n)] = source

    def _slots(self, page: int, row: int, n: int) -> slice:
        assert 0 <= page < self.n_pages and row >= 0 and n >= 1, "a copy outside the pool"
        assert row + n <= self.page_size, "a copy across the end of a page"
        first = page * self.page_size + row
        return slice(first, first + n)
