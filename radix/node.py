"""The node of the radix tree: a record without behaviour.

Knows nothing of leases beyond their number. Made and changed by `tree.Tree` alone; eviction
orders (`policy`) read it.
"""

from __future__ import annotations


class Node:
    """A run of tokens and the pages that hold their KV.

    `key`: packed tokens; `pages`: one page id for every `page_size` of them, begun pages included.
    All pages are full but a leaf's last. `parent` is None for a root and for a node that has been
    dropped. `children` maps a child's first page of tokens (fewer, if its only page is partial) to
    the child; `firsts` holds the same keys in order, so that the child that shares most tokens
    with any key is next to where that key would stand.

    `locks`: leases (and pending tail copies) that end here plus children with `locks` > 0; above
    zero neither this node nor an ancestor may be evicted. `writer`: id of the one live lease that
    may go on writing the unused rows of the last page.

    What eviction orders may read: `last_use` (logical time at which the last holder let go, or of
    creation), `hits` (acquires served), `priority`, `born` (order of creation). `ticket` is the
    node's live entry in the eviction queue, 0 for none.
    """

    __slots__ = (
        "born",
        "children",
        "firsts",
        "hits",
        "key",
        "last_use",
        "locks",
        "pages",
        "parent",
        "priority",
        "ticket",
        "writer",
    )

    def __init__(self, parent: Node | None, key: bytes, pages: list[int], born: int) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.born = born
        self.children: dict[bytes, Node] = {}
        self.firsts: list[bytes] = []
        self.locks = 0
        self.writer: int | None = None
        self.last_use = 0
        self.hits = 0
        self.priority = 0
        self.ticket = 0


class Root(Node):
    """The top of one namespace: no tokens, no pages, never evicted, dropped when it is bare."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(None, b"", [], 0)
        self.namespace = namespace
