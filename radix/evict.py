"""The queue of leaves that may be evicted: a lazy heap.

Entries are never searched for and removed; one that no longer holds is skipped when it comes up.
Knows one node at a time. Called by `tree.Tree` (push) and `cache.PrefixCache` (pop).
"""

from __future__ import annotations

import heapq

from .node import Node
from .policy import Order

# Below this many entries a heap is never worth compacting.
SMALL = 64


def evictable(node: Node) -> bool:
    """Whether a node is a leaf of the tree (no root, not dropped) that nothing holds."""
    return node.locks == 0 and not node.children and node.parent is not None


class EvictionQueue:
    """Evictable leaves, first to go first. Ties of `order` go by age: first in, first out.

    `push` costs O(log n), amortised over compaction: when stale entries outnumber the live ones,
    the heap is filtered, so it holds at most twice what lived at the last compaction.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.heap: list[tuple[tuple[int, ...], int, int, Node]] = []
        self.limit = SMALL
        self._tickets = 0

    def push(self, node: Node) -> None:
        """Enter a leaf that has just become evictable, or again after its key changed."""
        self._tickets += 1
        node.ticket = self._tickets
        heapq.heappush(self.heap, (self.order(node), node.born, node.ticket, node))
        if len(self.heap) > self.limit:
            self._compact()

    def pop(self) -> Node | None:
        """Take out the leaf to evict next; None when nothing is evictable."""
        while self.heap:
            key, _, ticket, node = heapq.heappop(self.heap)
            if node.ticket != ticket:
                continue
            node.ticket = 0
            if not evictable(node):
                continue
            if self.order(node) != key:
                self.push(node)
                continue
            return node
        return None

    def live(self) -> dict[int, Node]:
        """Ticket to node for all entries that hold. O(n): for audits."""
        return {t: node for _, _, t, node in self.heap if node.ticket == t and evictable(node)}

    def _compact(self) -> None:
        self.heap = [e for e in self.heap if e[3].ticket == e[2] and evictable(e[3])]
        heapq.heapify(self.heap)
        self.limit = max(SMALL, 2 * len(self.heap))
