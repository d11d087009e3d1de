"""Dumb readings of a prefix cache, for tests: every path of the tree spelled out.

Shares no code with the tree's own search, so that the two can be compared.
"""

from __future__ import annotations

from branchwork.radix.cache import Lease, PrefixCache
from branchwork.radix.key import pack, unpack
from branchwork.radix.node import Node

Spelled = tuple[str, tuple[int, ...], tuple[int, ...]]


def spell(cache: PrefixCache) -> list[Spelled]:
    """(namespace, tokens from the root, pages from the root) of every leaf, sorted."""
    found: list[Spelled] = []
    todo: list[tuple[str, Node, tuple[int, ...], tuple[int, ...]]] = []
    todo += [(name, root, (), ()) for name, root in cache._tree.roots.items()]
    while todo:
        name, node, tokens, pages = todo.pop()
        tokens, pages = tokens + tuple(unpack(node.key)), pages + tuple(node.pages)
        if not node.children and tokens:
            found.append((name, tokens, pages))
        todo += [(name, child, tokens, pages) for child in node.children.values()]
    return sorted(found)


def resident(cache: PrefixCache) -> set[tuple[str, tuple[int, ...]]]:
    """Every (namespace, prefix) whose last token has KV in the tree."""
    return {
        (name, tokens[:n]) for name, tokens, _ in spell(cache) for n in range(1, len(tokens) + 1)
    }


def nodes(cache: PrefixCache) -> list[Node]:
    """All nodes but the roots, parents first."""
    found: list[Node] = list(cache._tree.roots.values())
    for node in found:
        found += node.children.values()
    return [node for node in found if node.parent is not None]


def serve(cache: PrefixCache, ids: list[int], namespace: str = "") -> int:
    """One whole life of a sequence: acquire, grow, commit, release. Returns the tokens cached."""
    key = pack(ids)
    lease = cache.acquire(key, namespace)
    cache.grow(lease, len(ids))
    cache.commit(lease, key)
    cache.release(lease)
    return lease.cached


def start(cache: PrefixCache, ids: list[int], namespace: str = "") -> Lease:
    """A lease whose tokens all have KV and are committed; not released."""
    lease = cache.acquire(pack(ids), namespace)
    cache.grow(lease, len(ids))
    cache.commit(lease, pack(ids))
    return lease


def run(n: int, first: int = 0) -> list[int]:
    return list(range(first, first + n))
