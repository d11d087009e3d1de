"""What a live sequence holds of the cache, and the errors of holding.

Values without behaviour. A lease is made and changed by `cache.PrefixCache` alone; the scheduler
reads the public half.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .node import Node


class OutOfPages(Exception):
    """`wanted` pages were asked for, `available` are free or evictable. Nothing was changed."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(f"{wanted} pages wanted, {available} are free or evictable")
        self.wanted = wanted
        self.available = available


class LeaseError(RuntimeError):
    """A lease was used after its release, or against its rules: an error of ours, not a user's."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Rows `[0, n)` of page `src` are to be copied to the same rows of page `dst`."""

    src: int
    dst: int
    n: int


@dataclass(slots=True, eq=False)
class Lease:
    """One sequence's hold on the cache.

    Public, read only: `pages`, every page of the sequence in order, the tree's first, then its own
    (`PrefixCache.commit` may exchange ids in place); `cached`, tokens served at acquire; `copy`,
    the tail copy to be run before the first write, until `copied`; `namespace`.

    The cache's own: `key`, the tokens known to have KV; `node`, the locked node, which ends where
    the sequence's part of the tree ends: after `in_tree` tokens in `shared` pages, a begun last
    page counted (then `node.writer` is this lease); `source`, the node locked for `copy`; `epoch`,
    the cache's life this lease belongs to; `closed` after release.
    """

    id: int
    namespace: str
    node: Node
    epoch: int
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    copy: PageCopy | None = None
    key: bytes = b""
    in_tree: int = 0
    shared: int = 0
    source: Node | None = None
    closed: bool = False
