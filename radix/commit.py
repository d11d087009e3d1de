"""Committing: insertion, remapping, freeing of duplicates and the move of the lock, in one place.

Functions over the tree, the free pages and one lease; they know nothing else. Called by
`cache.PrefixCache.commit`, which has checked the lease.
"""

from __future__ import annotations

from .key import TOKEN_BYTES, n_tokens
from .lease import Lease
from .node import Node, Root
from .pages import FreePages
from .tree import Tree

# A leaf grows in place up to this many pages, then gets a child: its key is copied each time, and
# 512 pages of 16 tokens are 32 KiB, about a microsecond.
MAX_EXTENDED_PAGES = 512


def commit(tree: Tree, free: FreePages, lease: Lease) -> None:
    """Put `lease.key`, longer than `lease.in_tree`, into the tree; see the cache's method."""
    if lease.node.writer == lease.id and not _fill_begun_page(tree, free, lease):
        return
    _follow(tree, free, lease)
    _insert(tree, free, lease)


def _fill_begun_page(tree: Tree, free: FreePages, lease: Lease) -> bool:
    """Bring the begun page of the lease, in the tree already, up to its tokens.

    Returns whether the page is full, so that there may be more to commit behind it.
    """
    node, size = lease.node, tree.page_size
    start = lease.in_tree - lease.in_tree % size
    page = lease.key[start * TOKEN_BYTES : (start + size) * TOKEN_BYTES]
    full = n_tokens(page) == size
    if len(node.pages) > 1:
        tree.extend(node, page[(lease.in_tree - start) * TOKEN_BYTES :], [])
    else:
        assert node.parent is not None, "a node with pages has a parent"
        if tree.covering(node.parent, page) is None:
            free.give(tree.rekey(node, page))
        elif full:
            _give_up_begun_page(tree, lease)
            return True
        else:
            return False  # a sibling holds as much; ours stays as it is until it is full
    lease.in_tree = start + n_tokens(page)
    if full:
        node.writer = None
    return full


def _give_up_begun_page(tree: Tree, lease: Lease) -> None:
    """A sibling holds the same full page: step back to the parent, to be remapped to it.

    The page becomes private again, and so a duplicate, unless somebody still copies from it;
    then the tree keeps it.
    """
    node, parent = lease.node, lease.node.parent
    assert parent is not None, "a node with pages has a parent"
    node.writer = None
    _move_lock(tree, lease, parent)
    lease.in_tree -= lease.in_tree % tree.page_size
    if not node.locks:
        tree.detach(node)
        lease.shared -= 1


def _follow(tree: Tree, free: FreePages, lease: Lease) -> None:
    """Walk on along full pages that the tree has already; remap, then free our duplicates."""
    size = tree.page_bytes
    node, key, pos = lease.node, lease.key, lease.in_tree * TOKEN_BYTES
    duplicates: list[int] = []
    while len(key) - pos >= size:
        child = node.children.get(key[pos : pos + size])
        if child is None:
            break
        whole = tree.whole_pages(child, key, pos)
        if whole < len(child.pages):
            child = tree.split(child, whole)
        first = pos // size
        ours = lease.pages[first : first + whole]
        duplicates += ours[max(0, lease.shared - first) :]
        lease.pages[first : first + whole] = child.pages
        node, pos = child, pos + len(child.key)
    if node is lease.node:
        return
    _move_lock(tree, lease, node)
    lease.in_tree, lease.shared = pos // TOKEN_BYTES, pos // size
    free.give(reversed(duplicates))


def _insert(tree: Tree, free: FreePages, lease: Lease) -> None:
    """Put the tokens behind `lease.node` into the tree: in place if it is ours alone."""
    node = lease.node
    rest = lease.key[lease.in_tree * TOKEN_BYTES :]
    if not rest:
        return
    page = rest[: tree.page_bytes]
    if len(page) < tree.page_bytes and tree.covering(node, page) is not None:
        return
    free.give(tree.prune(node, page))
    end = lease.in_tree + n_tokens(rest)
    pages = lease.pages[lease.shared : -(-end // tree.page_size)]
    if _is_ours_alone(node) and len(node.pages) < MAX_EXTENDED_PAGES:
        tree.extend(node, rest, pages)
    else:
        _move_lock(tree, lease, tree.attach(node, rest, pages))
    lease.node.writer = lease.id if end % tree.page_size else None
    lease.in_tree = end
    lease.shared += len(pages)


def _move_lock(tree: Tree, lease: Lease, node: Node) -> None:
    """Lock `node` before letting go of the old one: no common ancestor is ever unprotected."""
    tree.lock(node)
    tree.unlock(lease.node)
    lease.node = node


def _is_ours_alone(node: Node) -> bool:
    """Whether a node that our lease has locked is a leaf that nobody else holds."""
    return node.locks == 1 and not node.children and not isinstance(node, Root)
