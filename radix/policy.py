"""Eviction orders: plain functions from a node to a sortable key; the smallest key goes first.

An order only reads the node. Equal keys are broken first in, first out by the queue. Passed to
`cache.PrefixCache`, called by `evict.EvictionQueue`.
"""

from __future__ import annotations

from collections.abc import Callable

from .node import Node

Order = Callable[[Node], tuple[int, ...]]


def lru(node: Node) -> tuple[int, ...]:
    """Least recently used first."""
    return (node.last_use,)
