"""Flush, drop, use after the end, and deep trees, one behaviour a test."""

from __future__ import annotations

import sys

import pytest
from radix_walks import resident, run, serve, start

from branchwork.radix.cache import LeaseError, PrefixCache
from branchwork.radix.key import pack

# --- flush, drop, use after the end -------------------------------------------------------------


def test_a_lease_lives_on_after_a_flush() -> None:
    cache = PrefixCache(10, 4)
    serve(cache, run(20, 100))
    lease = start(cache, run(6))
    assert cache.flush() == 5
    cache.grow(lease, 9)
    cache.commit(lease, pack(run(9)))
    assert cache.peek(pack(run(9))) == 8
    cache.release(lease)
    assert cache.flush() == 3
    cache.audit()


def test_a_released_lease_can_do_nothing_more() -> None:
    cache = PrefixCache(4, 4)
    lease = start(cache, run(4))
    cache.release(lease)
    for act in (
        lambda: cache.grow(lease, 5),
        lambda: cache.commit(lease, pack(run(4))),
        lambda: cache.copied(lease),
    ):
        with pytest.raises(LeaseError, match="after its release"):
            act()


def test_drop_starts_again_whatever_was_held() -> None:
    cache = PrefixCache(8, 4)
    serve(cache, run(8, 50))
    lease = start(cache, run(6))
    version = cache.version
    cache.drop()
    assert (cache.available, cache.stats().free, cache.stats().leases) == (8, 8, 0)
    assert cache.version != version
    with pytest.raises(LeaseError, match="dropped"):
        cache.grow(lease, 9)
    cache.release(lease)
    assert serve(cache, run(6)) == 0
    assert serve(cache, run(6)) == 5
    cache.audit()


# --- deep trees ---------------------------------------------------------------------------------


def test_a_long_prompt_committed_in_small_chunks_meets_no_recursion() -> None:
    cache = PrefixCache(6001, 1)
    prompt = run(6000)
    lease = cache.acquire(pack(prompt))
    for n in range(4, 6001, 4):
        cache.grow(lease, n)
        cache.commit(lease, pack(prompt[:n]))
    cache.release(lease)
    cache.audit()
    assert cache.flush() == 6000
    assert cache.stats().nodes == 0


def test_a_chain_of_ever_longer_prompts_meets_no_recursion() -> None:
    cache = PrefixCache(3000, 1)
    key = pack(run(3000))
    for n in range(1, 3001):
        serve_key(cache, key[: 4 * n])
    assert cache.peek(key) == 2999
    cache.audit()
    lease = cache.acquire(pack(run(3000, 5000)))
    cache.grow(lease, 3000)
    assert cache.stats().evicted_pages == 3000
    cache.release(lease)
    assert (cache.stats().nodes, cache.stats().free) == (0, 3000)


def serve_key(cache: PrefixCache, key: bytes) -> None:
    lease = cache.acquire(key)
    cache.grow(lease, len(key) // 4)
    cache.commit(lease, key)
    cache.release(lease)


def test_a_tree_ten_thousand_nodes_deep_is_normal() -> None:
    depth = 10_000
    assert depth > sys.getrecursionlimit()
    cache = PrefixCache(2 * depth + 2, 1)
    key = pack([0] * depth)
    serve_key(cache, key)
    for n in range(depth - 1, 0, -1):  # a match that ends here splits the trunk here
        cache.release(cache.acquire(key[: 4 * n] + pack([1])))
    assert cache.stats().nodes == depth
    assert cache.peek(key + pack([2])) == depth
    cache.audit()
    leaf = cache.acquire(key + pack([3]))
    assert (leaf.cached, cache.stats().evictable) == (depth, 0)
    cache.audit()
    cache.release(leaf)
    assert cache.stats().evictable == depth
    cache.audit()
    assert cache.flush() == depth
    serve_key(cache, key)
    cache.drop()
    cache.audit()


def test_counters_say_what_was_served() -> None:
    cache = PrefixCache(10, 4)
    serve(cache, run(8))
    serve(cache, run(8))
    stats = cache.stats()
    assert (stats.query_tokens, stats.hit_tokens) == (16, 7)
    assert (stats.free, stats.cached, stats.leased, stats.total) == (8, 2, 0, 10)
    assert len(resident(cache)) == 8
