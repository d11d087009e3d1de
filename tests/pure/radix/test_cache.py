"""Matching, namespaces, splits, locks and eviction, one behaviour a test."""

from __future__ import annotations

import pytest
from radix_walks import nodes, run, serve, spell, start

from branchwork.radix.cache import LeaseError, OutOfPages, PageCopy, PrefixCache
from branchwork.radix.key import pack

# --- matching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 33])
def test_the_same_prompt_again_is_served_but_for_its_last_token(n: int, page_size: int) -> None:
    cache = PrefixCache(100, page_size)
    assert serve(cache, run(n)) == 0
    assert serve(cache, run(n)) == n - 1
    cache.audit()


def test_an_empty_prompt_and_a_negative_limit_match_nothing() -> None:
    cache = PrefixCache(4, 4)
    serve(cache, run(8))
    for tokens, limit in [([], None), ([0], None), (run(8), 0), (run(8), -3)]:
        assert cache.peek(pack(tokens), limit=limit) == 0
        lease = cache.acquire(pack(tokens), limit=limit)
        assert (lease.cached, lease.pages, lease.copy) == (0, [], None)
        cache.release(lease)
    cache.audit()


def test_limit_caps_the_match_at_a_token() -> None:
    cache = PrefixCache(20, 4)
    serve(cache, run(16))
    lease = cache.acquire(pack(run(16)), limit=6)
    assert lease.cached == 6
    assert lease.copy is not None and lease.copy.n == 2


def test_divergence_inside_a_page_costs_a_copy_of_the_shared_rows() -> None:
    cache = PrefixCache(10, 4)
    first = start(cache, run(12))
    lease = cache.acquire(pack([*run(6), 99, 98, 97]))
    assert lease.cached == 6
    assert lease.pages[0] == first.pages[0]
    assert lease.copy == PageCopy(first.pages[1], lease.pages[1], 2)
    cache.audit()


def test_among_siblings_that_begin_alike_the_longest_match_wins() -> None:
    cache = PrefixCache(40, 8)
    for tail in ([1, 1, 1, 1], [1, 1, 2, 2], [1, 2, 2, 2], [3]):
        serve(cache, [7, 7, 7, *tail])
    assert cache.peek(pack([7, 7, 7, 1, 1, 2, 9, 9])) == 6
    assert cache.peek(pack([7, 7, 7, 1, 1, 0, 0])) == 5
    assert cache.peek(pack([7, 7, 7, 0, 0])) == 3
    assert cache.peek(pack([7, 7, 7, 3, 9])) == 4
    assert cache.peek(pack([8])) == 0


def test_ten_thousand_siblings_inside_one_page_are_told_apart() -> None:
    cache = PrefixCache(10_100, 16)
    for i in range(10_000):
        serve(cache, [5, 5, i, *([1] * 13)])
    cache.audit()
    for i in (0, 1, 4_711, 9_999):
        assert cache.peek(pack([5, 5, i, 1, 1, 9])) == 5
    assert cache.peek(pack([5, 5, 10_000, 1])) == 2
    assert len(nodes(cache)) == 10_000


def test_peek_changes_neither_order_nor_counters() -> None:
    cache = PrefixCache(8, 4)
    serve(cache, run(8, 0))
    serve(cache, run(8, 100))
    before = (cache.stats(), cache.version)
    assert cache.peek(pack(run(8, 0))) == 7
    assert (cache.stats(), cache.version) == before
    lease = cache.acquire(pack(run(20, 500)))
    cache.grow(lease, 20)  # five pages: four were free, the oldest sequence gives its tail
    assert cache.peek(pack(run(8, 0))) == 4
    assert cache.peek(pack(run(8, 100))) == 7


def test_version_changes_with_commit_and_eviction_and_flush_only() -> None:
    cache = PrefixCache(4, 4)
    lease = cache.acquire(pack(run(8)))
    cache.grow(lease, 8)
    assert cache.version == 0
    cache.commit(lease, pack(run(8)))
    committed = cache.version
    assert committed > 0
    cache.release(lease)
    other = cache.acquire(pack(run(5)))
    assert cache.version == committed
    cache.release(other)
    cache.flush()
    flushed = cache.version
    assert flushed > committed
    cache.flush()
    assert cache.version == flushed


# --- namespaces ---------------------------------------------------------------------------------


def test_namespaces_never_see_each_other() -> None:
    cache = PrefixCache(40, 16)
    prompt = run(64)
    cached = [serve(cache, prompt, salt) for salt in ("a", "b", "a", "")]
    assert cached == [0, 0, 63, 0]
    assert cache.stats().namespaces == 3
    cache.audit()


def test_eviction_and_counts_are_exact_across_namespaces() -> None:
    cache = PrefixCache(12, 16)
    for salt in ("a", "b", ""):
        serve(cache, run(64), salt)
    lease = start(cache, run(32, 500), "c")
    assert cache.stats().evicted_pages == 2
    assert [cache.peek(pack(run(64)), salt) for salt in ("a", "b", "")] == [32, 63, 63]
    assert cache.flush("b") == 4
    assert [cache.peek(pack(run(64)), salt) for salt in ("a", "b", "")] == [32, 0, 63]
    cache.release(lease)
    assert cache.flush() == 8
    assert cache.stats().namespaces == 0
    cache.audit()


# --- splitting ----------------------------------------------------------------------------------


def test_the_upper_node_of_a_split_inherits_what_orders_eviction() -> None:
    cache = PrefixCache(10, 4)
    serve(cache, run(16))
    serve(cache, run(20))
    (whole,) = nodes(cache)
    whole.priority = 7
    seen = (whole.hits, whole.last_use, whole.priority)
    assert whole.hits == 1
    lease = cache.acquire(pack(run(9)))
    upper, lower = nodes(cache)
    assert (lower.hits, lower.last_use, lower.priority) == seen
    assert (upper.hits, upper.last_use, upper.priority) == (seen[0] + 1, *seen[1:])
    assert (upper.locks, lower.locks) == (1, 0)
    cache.release(lease)
    cache.audit()


def test_a_split_above_a_locked_node_is_locked_too() -> None:
    cache = PrefixCache(10, 4)
    deep, twin = start(cache, run(16)), cache.acquire(pack(run(17)))
    lease = cache.acquire(pack(run(9)))
    cache.release(lease)
    upper, lower = nodes(cache)
    assert (upper.locks, lower.locks) == (1, 2)
    cache.audit()
    cache.release(twin)
    assert cache.flush() == 0
    assert cache.peek(pack(run(17))) == 16
    cache.release(deep)
    assert cache.flush() == 4


# --- locks and eviction -------------------------------------------------------------------------


def test_a_locked_path_is_never_evicted_and_a_second_release_raises() -> None:
    cache = PrefixCache(3, 16)
    serve(cache, run(16))
    serve(cache, run(32))
    lease = cache.acquire(pack(run(33)))
    assert (lease.cached, cache.stats().evictable, cache.available) == (32, 0, 1)
    assert cache.flush() == 0
    cache.release(lease)
    assert cache.stats().evictable == 2
    assert cache.flush() == 2
    with pytest.raises(LeaseError, match="twice"):
        cache.release(lease)
    assert (cache.stats().free, cache.stats().evictable) == (3, 0)
    cache.audit()


def test_one_page_wanted_from_a_long_leaf_costs_one_page() -> None:
    cache = PrefixCache(100, 16)
    serve(cache, run(1600))
    lease = cache.acquire(pack(run(16, 5000)))
    cache.grow(lease, 16)
    assert cache.stats().evicted_pages == 1
    assert cache.peek(pack(run(1600))) == 1584
    cache.audit()


def test_a_partial_last_page_goes_before_the_full_ones() -> None:
    cache = PrefixCache(3, 4)
    serve(cache, run(10))
    lease = cache.acquire(pack([99]))
    cache.grow(lease, 1)
    assert cache.peek(pack(run(10))) == 8


def test_leaves_with_the_same_last_use_go_first_in_first_out() -> None:
    cache = PrefixCache(3, 4)
    for first in (10, 20, 30):
        serve(cache, run(4, first))
    for node in nodes(cache):
        node.last_use = 0
    lease = cache.acquire(pack(run(9)))
    for n, left in [(4, [20, 30]), (8, [30]), (9, [])]:
        cache.grow(lease, n)
        assert [first for first in (10, 20, 30) if cache.peek(pack(run(5, first)))] == left


def test_what_was_used_last_is_kept() -> None:
    cache = PrefixCache(6, 4)
    for first in (0, 100, 200):
        serve(cache, run(8, first))
    cache.release(cache.acquire(pack(run(8, 0))))
    start(cache, run(8, 300))
    assert [cache.peek(pack(run(9, first))) for first in (0, 100, 200)] == [8, 0, 8]


def test_another_order_is_a_function_of_the_node() -> None:
    cache = PrefixCache(4, 4, order=lambda node: (node.hits,))
    serve(cache, run(8, 0))
    cache.release(cache.acquire(pack(run(9, 0))))
    serve(cache, run(8, 100))
    start(cache, run(8, 200))
    assert [cache.peek(pack(run(9, first))) for first in (0, 100)] == [8, 0]


def test_grow_that_cannot_be_served_changes_nothing() -> None:
    cache = PrefixCache(4, 4)
    serve(cache, run(8))
    lease = start(cache, run(4, 100))
    before = (cache.stats(), cache.version, list(lease.pages), spell(cache))
    with pytest.raises(OutOfPages) as caught:
        cache.grow(lease, 17)
    assert (caught.value.wanted, caught.value.available) == (4, 3)
    assert (cache.stats(), cache.version, list(lease.pages), spell(cache)) == before
    cache.grow(lease, 16)
    assert (cache.available, cache.stats().leased) == (0, 3)
    cache.audit()
