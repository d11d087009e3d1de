"""Counters of a prefix cache: frozen values, nothing else. Made by `cache.PrefixCache.stats`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """One reading. `free + cached + leased == total`, always.

    Pages now: `total`; `free`; `cached` (in the tree); `leased` (private to leases); `evictable`
    (of the cached). Counts since the start: `evicted_pages` (taken back for others; a flush is not
    counted); `query_tokens` asked for and `hit_tokens` served by `acquire`. Now: `nodes` (roots not
    counted), `leases`, `namespaces`.
    """

    total: int
    free: int
    cached: int
    leased: int
    evictable: int
    evicted_pages: int
    query_tokens: int
    hit_tokens: int
    nodes: int
    leases: int
    namespaces: int
