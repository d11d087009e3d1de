"""The audit finds what is wrong, whatever it is, and says it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from radix_walks import nodes, serve

from branchwork.radix.cache import AuditError, PrefixCache
from branchwork.radix.key import pack


def busy() -> PrefixCache:
    """Two branches below a shared page, one of them leased, a copy pending, a page private."""
    cache = PrefixCache(12, 4)
    serve(cache, [0, 1, 2, 3, 4, 5, 6, 7])
    serve(cache, [0, 1, 2, 3, 9, 9, 9, 9, 9])
    lease = cache.acquire(pack([0, 1, 2, 3, 4, 5, 8]))
    assert lease.copy is not None
    cache.grow(lease, 12)
    cache.audit()
    return cache


def leaf(cache: PrefixCache) -> object:
    return next(node for node in nodes(cache) if not node.children and not node.locks)


def lose_a_page(cache: PrefixCache) -> None:
    cache._free._stack.pop()


def own_a_page_twice(cache: PrefixCache) -> None:
    next(iter(cache._leases.values())).pages[-1] = nodes(cache)[0].pages[0]


def miscount_evictable(cache: PrefixCache) -> None:
    cache._tree.evictable_pages += 1


def miscount_cached(cache: PrefixCache) -> None:
    cache._tree.n_pages -= 1


def miscount_nodes(cache: PrefixCache) -> None:
    cache._tree.n_nodes += 1


def lose_a_lock(cache: PrefixCache) -> None:
    nodes(cache)[0].locks -= 1


def disorder_children(cache: PrefixCache) -> None:
    nodes(cache)[0].firsts.reverse()


def shorten_a_key(cache: PrefixCache) -> None:
    leaf(cache).key = b""


def unqueue_a_leaf(cache: PrefixCache) -> None:
    cache._tree.queue.heap.clear()


def move_a_lease(cache: PrefixCache) -> None:
    next(iter(cache._leases.values())).shared += 1


def write_without_a_right(cache: PrefixCache) -> None:
    leaf(cache).writer = 77


def detach_a_lease(cache: PrefixCache) -> None:
    lease = next(iter(cache._leases.values()))
    lease.namespace = "elsewhere"


def make_a_circle(cache: PrefixCache) -> None:
    top = nodes(cache)[0]
    leaf(cache).children[b"x"] = top


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lose_a_page, "has 0 owners"),
        (own_a_page_twice, "has 2 owners"),
        (miscount_evictable, "counter of evictable pages"),
        (miscount_cached, "counter of cached pages"),
        (miscount_nodes, "counter of nodes"),
        (lose_a_lock, "locks, it should have"),
        (disorder_children, "order of its children"),
        (shorten_a_key, "key bytes for"),
        (unqueue_a_leaf, "not queued"),
        (move_a_lease, "shared pages are not those of its path"),
        (write_without_a_right, "writer that is gone"),
        (detach_a_lease, "hangs on no root"),
        (make_a_circle, "reachable twice"),
    ],
)
def test_damage_is_named_and_dropping_the_cache_heals_it(
    damage: Callable[[PrefixCache], None], says: str
) -> None:
    cache = busy()
    damage(cache)
    with pytest.raises(AuditError, match=says):
        cache.audit()
    cache.drop()
    cache.audit()
    assert serve(cache, [1, 2, 3]) == 0
