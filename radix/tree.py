"""The radix tree: find, split, attach, detach, and the lock counts that protect paths.

Structure only: knows neither leases nor free pages. Everything is a loop, never recursion; a tree
10,000 nodes deep is normal. Called by `cache.PrefixCache` alone.

    root ── "system prompt" ─┬─ "question 1" ── ...      every node but a leaf ends on a page border
                             ├─ "question 2, as"          siblings may share the first tokens of a
                             └─ "question 2: wh"          page: a page is not divided
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from .evict import EvictionQueue, evictable
from .key import TOKEN_BYTES, common_prefix
from .node import Node, Root
from .policy import Order


class Found(NamedTuple):
    """Where a match ends: `n` tokens in all.

    All of `node` matched and it ends on a page border. Of `child`, a child of it, `full` whole
    pages and `rows` rows of the next page matched (not all of it, unless its last page is partial);
    None when the match ends with `node`.
    """

    node: Node
    child: Node | None
    full: int
    rows: int
    n: int


class Tree:
    """All namespaces' trees and the counters over them.

    `n_nodes` (roots not counted), `n_pages`; `evictable_pages`: pages of nodes with no locks, which
    a chain of evictions can always reach, since a node without locks has no locked descendant.
    `clock`: logical time, advanced by the caller. `changes`: counts what may alter a match.
    """

    def __init__(self, page_size: int, order: Order) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.roots: dict[str, Root] = {}
        self.queue = EvictionQueue(order)
        self.n_nodes = 0
        self.n_pages = 0
        self.evictable_pages = 0
        self.clock = 0
        self.changes = 0
        self._born = 0

    # --- reading -------------------------------------------------------------------------------

    def find(self, root: Node, query: bytes) -> Found:
        """The longest match of `query` below `root`. Changes nothing."""
        node, pos, end = root, 0, len(query)
        while pos < end:
            first = query[pos : pos + self.page_bytes]
            child = node.children.get(first)
            if child is None:
                child, rows = self._nearest(node, first)
                if rows == 0:
                    break
                return Found(node, child, 0, rows, pos // TOKEN_BYTES + rows)
            size = len(child.key)
            if size % self.page_bytes == 0 and query.startswith(child.key, pos):
                node, pos = child, pos + size
                continue
            n = common_prefix(child.key, query[pos : pos + size])
            return Found(node, child, *divmod(n, self.page_size), pos // TOKEN_BYTES + n)
        return Found(node, None, 0, 0, pos // TOKEN_BYTES)

    def _nearest(self, node: Node, first: bytes) -> tuple[Node | None, int]:
        """The child whose first page shares most leading tokens with `first`, and how many.

        In byte order the keys that share a prefix stand together, so only the two neighbours can
        win. On a tie the smaller key does: it may be a partial page that ends right here.
        """
        if self.page_size == 1 or not node.firsts:
            return None, 0
        at = bisect_left(node.firsts, first)
        best, rows = None, 0
        for key in node.firsts[max(0, at - 1) : at + 1]:
            shared = common_prefix(key, first)
            if shared > rows:
                best, rows = node.children[key], shared
        return best, rows

    def whole_pages(self, child: Node, key: bytes, pos: int) -> int:
        """How many leading pages of `child` are full and equal `key` from byte `pos` on."""
        size = len(child.key)
        if size % self.page_bytes == 0 and key.startswith(child.key, pos):
            return len(child.pages)
        return common_prefix(child.key, key[pos : pos + size]) // self.page_size

    def covering(self, parent: Node, key: bytes) -> Node | None:
        """The child of `parent` whose first page begins with `key` (at most a page), if any."""
        at = bisect_left(parent.firsts, key)
        if at < len(parent.firsts) and parent.firsts[at].startswith(key):
            return parent.children[parent.firsts[at]]
        return None

    def path(self, node: Node) -> list[Node]:
        """The nodes from below the root down to `node`."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    # --- changing the structure ----------------------------------------------------------------

    def root(self, namespace: str) -> Root:
        """The namespace's root, made if there is none. Lock it, or something below, at once."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(namespace)
        return root

    def split(self, node: Node, n_pages: int) -> Node:
        """Cut a node after `n_pages` of its pages; returns the new upper node.

        The lower keeps its identity, so leases and the writer stay where their tokens end. The
        upper inherits age, last use, hits and priority, and is locked if the lower is.
        """
        cut = n_pages * self.page_bytes
        assert 0 < n_pages < len(node.pages) and node.parent is not None, "a cut inside the node"
        upper = Node(node.parent, node.key[:cut], node.pages[:n_pages], node.born)
        upper.last_use, upper.hits, upper.priority = node.last_use, node.hits, node.priority
        upper.locks = 1 if node.locks else 0
        node.parent.children[self._first(upper)] = upper
        node.key, node.pages, node.parent = node.key[cut:], node.pages[n_pages:], upper
        first = self._first(node)
        upper.children[first] = node
        upper.firsts.append(first)
        self.n_nodes += 1
        return upper

    def attach(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        """Hang a new leaf below `parent`, unlocked. Lock it at once: it is not queued."""
        self._born += 1
        node = Node(parent, key, pages, self._born)
        node.last_use = self.clock
        self._link(node)
        self.n_nodes += 1
        self.n_pages += len(pages)
        self.changes += 1
        self.evictable_pages += len(pages)
        return node

    def extend(self, node: Node, key: bytes, pages: list[int]) -> None:
        """Lengthen a locked leaf in place. `key` may first fill up its partial last page."""
        assert node.locks and not node.children, "only a locked leaf is extended"
        node.key += key
        node.pages += pages
        self.n_pages += len(pages)
        self.changes += 1

    def rekey(self, node: Node, key: bytes) -> list[int]:
        """Lengthen the tokens of a locked leaf's only, partial page to `key`.

        Returns the pages of the siblings this made needless (see `prune`).
        """
        parent = node.parent
        assert parent is not None and node.locks and len(node.pages) == 1, "one page, locked"
        self._unlink(node)
        pages = self.prune(parent, key)
        node.key = key
        self._link(node)
        self.changes += 1
        return pages

    def prune(self, parent: Node, key: bytes) -> list[int]:
        """Detach unlocked partial children whose tokens all stand in `key`; returns their pages.

        Looks only at those right before `key` in order: one hidden behind a foreign sibling or a
        locked one stays, is harmless, and goes by eviction.
        """
        pages: list[int] = []
        while True:
            at = bisect_left(parent.firsts, key)
            if at == 0 or not key.startswith(parent.firsts[at - 1]):
                return pages
            child = parent.children[parent.firsts[at - 1]]
            if child.locks:
                return pages
            pages += self.detach(child)

    def trim(self, leaf: Node, n_pages: int) -> list[int]:
        """Cut `n_pages`, not all, off the tail of an evictable leaf; returns them, last first."""
        keep = len(leaf.pages) - n_pages
        assert keep > 0 and evictable(leaf), "an evictable leaf keeps at least a page"
        pages = leaf.pages[keep:]
        leaf.pages = leaf.pages[:keep]
        leaf.key = leaf.key[: keep * self.page_bytes]
        self.n_pages -= n_pages
        self.changes += 1
        self.evictable_pages -= n_pages
        pages.reverse()
        return pages

    def detach(self, leaf: Node) -> list[int]:
        """Take an unlocked leaf out of the tree; returns its pages, last first.

        Its parent may thereby become evictable, or go if it is a bare root.
        """
        parent = leaf.parent
        assert evictable(leaf) and parent is not None, "only an evictable leaf is detached"
        self._unlink(leaf)
        leaf.parent = None
        self.n_nodes -= 1
        self.n_pages -= len(leaf.pages)
        self.changes += 1
        self.evictable_pages -= len(leaf.pages)
        self._settle(parent)
        return leaf.pages[::-1]

    # --- locks ---------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Protect a node and its ancestors. Walks up only to the first protected one."""
        at: Node | None = node
        while at is not None:
            at.locks += 1
            if at.locks > 1:
                return
            self.evictable_pages -= len(at.pages)
            at = at.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`. Nodes that lose their last protection are stamped with the clock."""
        at: Node | None = node
        while at is not None:
            assert at.locks > 0, "a node was unlocked more often than locked"
            at.locks -= 1
            if at.locks:
                return
            at.last_use = self.clock
            self.evictable_pages += len(at.pages)
            self._settle(at)
            at = at.parent

    def _settle(self, node: Node) -> None:
        """Queue a node that has become evictable; forget a root that has become bare."""
        if node.locks or node.children:
            return
        if isinstance(node, Root):
            del self.roots[node.namespace]
        else:
            self.queue.push(node)

    # --- children ------------------------------------------------------------------------------

    def _first(self, node: Node) -> bytes:
        return node.key[: self.page_bytes]

    def _link(self, node: Node) -> None:
        assert node.parent is not None
        first = self._first(node)
        assert first not in node.parent.children, "siblings differ in their first page"
        at = bisect_left(node.parent.firsts, first)
        node.parent.firsts.insert(at, first)
        node.parent.children[first] = node

    def _unlink(self, node: Node) -> None:
        assert node.parent is not None
        first = self._first(node)
        del node.parent.firsts[bisect_left(node.parent.firsts, first)]
        del node.parent.children[first]
