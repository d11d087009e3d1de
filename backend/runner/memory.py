"""Bytes this process may use -> number of KV pages.

Arithmetic alone; no torch, no model. Called by the composition root before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...lang.errors import ModelError

KV_SHARE = 0.5
"""Part of what is left beside the weights that the pool may take: activations, logits and the
programs themselves live in the rest."""

MAX_KV_BYTES = 4 << 30
"""A pool beyond this serves no CPU: attending over it once takes longer than recomputing it."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """`weights` bytes of the loaded model; `page` bytes of one KV page over all layers."""

    weights: int
    page: int


def pages_for(need: MemoryNeed, available: int, cap: int = MAX_KV_BYTES) -> int:
    """How many KV pages to allocate with `available` bytes at hand, weights not yet loaded.

    `KV_SHARE` of what the weights leave, at most `cap` bytes. Raises ModelError where not even one
    page fits.
    """
    pages = min(int((available - need.weights) * KV_SHARE), cap) // need.page
    if pages < 1:
        raise ModelError(
            f"the model needs {_mib(need.weights)} for its weights and {_mib(need.page)} "
            f"a KV page, but this process may use {_mib(available)}: free memory, raise the "
            "container's limit or take a smaller model"
        )
    return pages


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"
