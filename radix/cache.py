"""The prefix cache: the only door to the radix tree and the pages.

Integers and order only: no tensors, no clock, no threads; never knows what a request is. The
scheduler is its one caller. Who owns which page of a lease:

    pages   [ 0   1   2   3 | 4 ][ 5   6 ]        a page is the tree's, a lease's own, or free
              the tree's      |    private          `shared` counts the tree's
              read only    maybe: begun page, in the tree up to `in_tree` tokens;
                           only this lease (`node.writer`) writes its further rows

What others match of a begun page they copy (`PageCopy`); rows already committed never change.
"""

from __future__ import annotations

from . import policy
from .audit import AuditError, audit
from .commit import commit
from .key import TOKEN_BYTES, n_tokens
from .lease import Lease, LeaseError, OutOfPages, PageCopy
from .node import Node, Root
from .pages import FreePages
from .stats import CacheStats
from .tree import Found, Tree

__all__ = [
    "AuditError",
    "CacheStats",
    "Lease",
    "LeaseError",
    "OutOfPages",
    "PageCopy",
    "PrefixCache",
]


class PrefixCache:
    """Matches, leases, keeps and forgets pages of KV.

    All methods but `flush`, `audit` and `drop` cost at most O(tokens / page_size), the copying and
    comparing of packed keys aside.
    """

    def __init__(self, n_pages: int, page_size: int, order: policy.Order = policy.lru) -> None:
        """`n_pages` pages of `page_size` tokens; `order` says which leaf is evicted first."""
        assert page_size >= 1, f"a page holds at least one token, found {page_size}"
        self.total_pages = n_pages
        self.page_size = page_size
        self._version = 0
        self._order = order
        self._epoch = 0
        self._last_id = 0
        self._evicted_pages = 0
        self._query_tokens = 0
        self._hit_tokens = 0
        self._reset()

    def _reset(self) -> None:
        self._tree = Tree(self.page_size, self._order)
        self._free = FreePages(self.total_pages)
        self._leases: dict[int, Lease] = {}

    @property
    def available(self) -> int:
        """Pages that can be had now: free or evictable. Exact, O(1)."""
        return len(self._free) + self._tree.evictable_pages

    @property
    def version(self) -> int:
        """Changes whenever a match could come out differently than before."""
        return self._version + self._tree.changes

    # --- leasing -------------------------------------------------------------------------------

    def acquire(
        self, tokens: bytes, namespace: str = "", limit: int | None = None, room: int = 0
    ) -> Lease:
        """Lease the longest cached prefix of `tokens` (packed), token-granular.

        At most `limit` tokens and at most all but one (one position must be computed). Locks what
        it matched, counts the hit, and may split nodes; what `peek` says stays the same. Where the
        match ends inside a page, one of two things holds: that page ends right there and nobody
        writes it, then the lease takes over its unused rows; or `lease.copy` asks for its rows in
        a page of the lease's own, and the source stays locked until `copied`. The copy is forgone
        (whole pages only) where with the source locked too few pages would be left to hold `room`
        positions, or all of `tokens` and one more: else a sequence that fits only an otherwise
        empty pool could never start. Never raises for want of pages.
        """
        tree = self._tree
        tree.clock += 1
        self._last_id += 1
        n = n_tokens(tokens)
        root = tree.root(namespace)
        found = tree.find(root, _query(tokens, limit))
        lease = Lease(self._last_id, namespace, root, self._epoch)
        self._hold(lease, found)
        for node in tree.path(lease.node):
            node.hits += 1
            lease.pages += node.pages
        lease.shared = len(lease.pages)
        if found.rows and lease.in_tree < found.n:
            assert found.child is not None, "rows are a child's"
            self._copy_tail(lease, found.child, found.rows, max(room, n + 1))
        lease.cached = lease.in_tree + (lease.copy.n if lease.copy else 0)
        lease.key = tokens[: lease.cached * TOKEN_BYTES]
        self._leases[lease.id] = lease
        self._query_tokens += n
        self._hit_tokens += lease.cached
        return lease

    def _hold(self, lease: Lease, found: Found) -> None:
        """Lock what was found for the lease, up to the last page border or a page taken over."""
        node, child = found.node, found.child
        whole = found.n - found.rows
        if child is not None:
            if found.rows and child.writer is None and _ends(child, found, self.page_size):
                node, whole = child, found.n
                child.writer = lease.id
            elif found.full:
                node = self._tree.split(child, found.full)
        self._tree.lock(node)
        lease.node, lease.in_tree = node, whole

    def _copy_tail(self, lease: Lease, source: Node, rows: int, room: int) -> None:
        """Arrange the copy of `rows` rows of the first page of `source`, if `room` remains."""
        wanted = self._pages_for(room) - lease.shared
        if wanted > self.available - (0 if source.locks else 1):
            return
        if len(source.pages) > 1 and not source.locks:
            source = self._tree.split(source, 1)  # what follows that page stays evictable
        self._tree.lock(source)
        source.hits += 1
        own = self._take(1)
        lease.pages += own
        lease.source, lease.copy = source, PageCopy(source.pages[0], own[0], rows)

    def grow(self, lease: Lease, n_tokens: int) -> None:
        """Make `lease.pages` hold `n_tokens` positions in all, evicting where it must.

        Raises OutOfPages, having changed nothing. Never takes pages away.
        """
        self._check(lease)
        wanted = self._pages_for(n_tokens) - len(lease.pages)
        if wanted <= 0:
            return
        if wanted > self.available:
            raise OutOfPages(wanted, self.available)
        lease.pages += self._take(wanted)

    def copied(self, lease: Lease) -> None:
        """The tail copy has been run: let go of its source. Idempotent."""
        self._check(lease)
        self._drop_source(lease)

    def release(self, lease: Lease) -> None:
        """End the lease: what it committed may be evicted, its own pages are free.

        A second release raises LeaseError. A lease from before `drop` is only marked closed.
        """
        if lease.closed:
            raise LeaseError(f"lease {lease.id} was released twice")
        lease.closed = True
        if lease.epoch != self._epoch:
            return
        self._tree.clock += 1
        self._drop_source(lease)
        if lease.node.writer == lease.id:
            lease.node.writer = None
        self._tree.unlock(lease.node)
        self._free.give(reversed(lease.pages[lease.shared :]))
        del self._leases[lease.id]

    def _check(self, lease: Lease) -> None:
        if lease.closed:
            raise LeaseError(f"lease {lease.id} was used after its release")
        if lease.epoch != self._epoch:
            raise LeaseError(f"lease {lease.id} was used after the cache had been dropped")

    def _drop_source(self, lease: Lease) -> None:
        lease.copy = None
        if lease.source is not None:
            self._tree.unlock(lease.source)
            lease.source = None

    def _pages_for(self, n: int) -> int:
        return -(-n // self.page_size)

    def commit(self, lease: Lease, tokens: bytes) -> None:
        """Put the first tokens of the lease, counted from position 0, into the tree.

        `tokens` (packed) all have KV now; they extend what was committed before (LeaseError
        otherwise). Insertion, remapping, freeing of duplicates and the move of the lock happen here
        together: where another sequence committed the same tokens first, `lease.pages` is remapped
        to the tree's pages before ours are freed. A begun last page goes into the tree too, unless
        a child covers its tokens already; this lease alone keeps writing it. Implies `copied`.
        Costs O(new tokens), plus a memcmp of the old.
        """
        self._check(lease)
        if not tokens.startswith(lease.key):
            raise LeaseError(f"lease {lease.id}: a commit must extend the tokens it has")
        if self._pages_for(n_tokens(tokens)) > len(lease.pages):
            raise LeaseError(
                f"lease {lease.id}: {n_tokens(tokens)} tokens committed, "
                f"{len(lease.pages)} pages of {self.page_size} held"
            )
        self._tree.clock += 1
        self._drop_source(lease)
        lease.key = tokens
        if n_tokens(tokens) > lease.in_tree:
            commit(self._tree, self._free, lease)

    # --- forgetting ----------------------------------------------------------------------------

    def _take(self, n: int) -> list[int]:
        """`n` pages for a lease; the caller has checked `available`."""
        self._evict(n - len(self._free))
        return self._free.take(n)

    def _evict(self, n: int) -> None:
        """Free `n` pages from the tails of unlocked leaves, never more of a leaf than needed."""
        tree = self._tree
        while n > 0:
            leaf = tree.queue.pop()
            assert leaf is not None, "an evictable page is in the queue or above one that is"
            if len(leaf.pages) > n:
                pages = tree.trim(leaf, n)
                tree.queue.push(leaf)
            else:
                pages = tree.detach(leaf)
            self._free.give(pages)
            self._evicted_pages += len(pages)
            n -= len(pages)

    def flush(self, namespace: str | None = None) -> int:
        """Forget everything that no lease holds, in one namespace or all; returns pages freed."""
        names = list(self._tree.roots) if namespace is None else [namespace]
        before = len(self._free)
        for name in names:
            root = self._tree.roots.get(name)
            nodes: list[Node] = [root] if root else []
            for node in nodes:  # grows while it is read: parents come before their children
                nodes += node.children.values()
            for node in reversed(nodes[1:]):
                if not node.locks:
                    self._free.give(self._tree.detach(node))
        return len(self._free) - before

    def drop(self) -> None:
        """Start again with an empty tree and all pages free, whatever state the cache is in.

        For after a failed audit: fail the live sequences first. Their leases are void: `release`
        only closes them, all else raises LeaseError. Counters since the start go on.
        """
        self._epoch += 1
        self._version = self.version + 1
        self._reset()

    # --- asking --------------------------------------------------------------------------------

    def peek(self, tokens: bytes, namespace: str = "", limit: int | None = None) -> int:
        """How many tokens `acquire` would find, were pages no concern. Changes nothing at all."""
        root: Root | None = self._tree.roots.get(namespace)
        return self._tree.find(root, _query(tokens, limit)).n if root else 0

    def stats(self) -> CacheStats:
        """All counters, O(1)."""
        return CacheStats(
            total=self.total_pages,
            free=len(self._free),
            cached=self._tree.n_pages,
            leased=self.total_pages - len(self._free) - self._tree.n_pages,
            evictable=self._tree.evictable_pages,
            evicted_pages=self._evicted_pages,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            nodes=self._tree.n_nodes,
            leases=len(self._leases),
            namespaces=len(self._tree.roots),
        )

    def audit(self) -> None:
        """Recompute all and compare; raises AuditError naming what is wrong. O(cache)."""
        audit(self._tree, self._free, list(self._leases.values()))


def _query(tokens: bytes, limit: int | None) -> bytes:
    """The part of `tokens` that may be served from cache."""
    most = n_tokens(tokens) - 1
    if limit is not None:
        most = min(most, limit)
    return tokens[: max(0, most) * TOKEN_BYTES]


def _ends(child: Node, found: Found, page_size: int) -> bool:
    """Whether the match covers all of `child`."""
    return n_tokens(child.key) == found.full * page_size + found.rows
