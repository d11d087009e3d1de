"""The prefix cache, one behaviour a test; the state machine covers their combinations."""

from __future__ import annotations

import sys

import pytest
from radix_walks import nodes, resident, serve, spell

from branchwork.radix.cache import Lease, LeaseError, OutOfPages, PageCopy, PrefixCache
from branchwork.radix.key import pack


def start(cache: PrefixCache, ids: list[int], namespace: str = "") -> Lease:
    """A lease whose tokens all have KV and are committed; not released."""
    lease = cache.acquire(pack(ids), namespace)
    cache.grow(lease, len(ids))
    cache.commit(lease, pack(ids))
    return lease


def run(n: int, first: int = 0) -> list[int]:
    return list(range(first, first + n))


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


# --- commits ------------------------------------------------------------------------------------


def test_the_first_to_commit_a_shared_prompt_wins_and_the_other_is_remapped() -> None:
    cache = PrefixCache(20, 4)
    prompt = run(10)
    one, two = cache.acquire(pack(prompt)), cache.acquire(pack(prompt))
    for lease in (one, two):
        cache.grow(lease, 10)
    cache.commit(one, pack(prompt))
    own = list(two.pages)
    free = cache.stats().free
    cache.commit(two, pack(prompt))
    assert two.pages == [*one.pages[:2], own[2]], "full pages are shared, the begun one is not"
    assert cache.stats().free == free + 2
    cache.audit()
    cache.release(one)
    assert cache.flush() == 1, "the second still holds the full pages"
    cache.audit()


def test_a_remapped_page_is_in_use_before_the_duplicate_is_free() -> None:
    cache = PrefixCache(4, 4)
    one, two = cache.acquire(pack(run(8))), cache.acquire(pack(run(8)))
    for lease in (one, two):
        cache.grow(lease, 8)
        cache.commit(lease, pack(run(8)))
    third = cache.acquire(pack(run(8, 50)))
    cache.grow(third, 8)
    assert not set(third.pages) & set(two.pages)
    assert two.pages == one.pages


def test_a_sequence_that_grows_alone_stays_one_node_with_its_pages() -> None:
    cache = PrefixCache(100, 4)
    lease = cache.acquire(pack(run(1)))
    for n in range(1, 60):
        cache.grow(lease, n)
        pages = list(lease.pages)
        cache.commit(lease, pack(run(n)))
        assert lease.pages == pages
        assert cache.stats().leased == 0
    assert len(nodes(cache)) == 1
    cache.audit()


def test_a_begun_page_can_be_matched_while_its_sequence_goes_on() -> None:
    cache = PrefixCache(10, 4)
    writer = start(cache, run(6))
    reader = cache.acquire(pack([*run(6), 77]))
    assert reader.cached == 6
    assert reader.copy == PageCopy(writer.pages[1], reader.pages[1], 2)
    cache.grow(writer, 8)
    cache.commit(writer, pack(run(8)))
    assert reader.copy is not None and reader.copy.src == writer.pages[1]
    cache.grow(reader, 7)
    cache.copied(reader)
    cache.commit(reader, pack([*run(6), 77]))
    assert {cache.peek(pack([*run(8), 0])), cache.peek(pack([*run(6), 77, 0]))} == {7, 8}
    cache.audit()


def test_a_begun_page_that_nobody_writes_is_taken_over_without_a_copy() -> None:
    cache = PrefixCache(10, 4)
    serve(cache, run(6))
    (_, _, pages) = spell(cache)[0]
    turn = cache.acquire(pack(run(9)))
    assert (turn.cached, turn.copy, tuple(turn.pages)) == (6, None, pages)
    second = cache.acquire(pack([*run(6), 50]))
    assert second.cached == 6
    assert second.copy is not None, "only one lease may write the further rows"
    cache.grow(turn, 9)
    cache.commit(turn, pack(run(9)))
    assert tuple(turn.pages[:2]) == pages
    cache.audit()


def test_a_longer_commit_replaces_a_partial_page_that_nobody_holds() -> None:
    cache = PrefixCache(10, 4)
    longer = cache.acquire(pack(run(8)))
    serve(cache, run(6))
    cache.grow(longer, 7)
    cache.commit(longer, pack(run(7)))
    assert cache.stats().cached == 2
    assert [tokens for _, tokens, _ in spell(cache)] == [tuple(run(7))]
    cache.audit()


def test_a_longer_commit_leaves_a_partial_page_that_somebody_writes() -> None:
    cache = PrefixCache(10, 4)
    writer = cache.acquire(pack(run(6)))
    longer = cache.acquire(pack(run(8)))
    cache.grow(writer, 6)
    cache.commit(writer, pack(run(6)))
    cache.grow(longer, 7)
    cache.commit(longer, pack(run(7)))
    assert cache.stats().cached == 3
    cache.audit()
    for lease, n in ((writer, 8), (longer, 8)):
        cache.grow(lease, n)
        cache.commit(lease, pack(run(n)))
    assert writer.pages == longer.pages
    assert cache.stats().cached == 2
    cache.audit()


def test_a_begun_page_given_up_for_a_siblings_stays_while_somebody_copies_from_it() -> None:
    cache = PrefixCache(10, 4)
    writer, other = cache.acquire(pack(run(8))), cache.acquire(pack(run(8)))
    for lease, n in ((writer, 6), (other, 8)):
        cache.grow(lease, 8)
        cache.commit(lease, pack(run(n)))
    begun = writer.pages[1]
    reader = cache.acquire(pack([*run(6), 77]))
    assert reader.copy is not None and reader.copy.src == begun
    cache.commit(writer, pack(run(8)))
    assert writer.pages == other.pages
    cache.audit()
    cache.copied(reader)
    assert cache.stats().evictable == 1
    cache.audit()


def test_a_begun_page_given_up_for_a_siblings_is_freed_at_once() -> None:
    cache = PrefixCache(10, 4)
    writer, other = cache.acquire(pack(run(8))), cache.acquire(pack(run(8)))
    for lease, n in ((writer, 6), (other, 8), (writer, 8)):
        cache.grow(lease, 8)
        cache.commit(lease, pack(run(n)))
    assert writer.pages == other.pages
    assert (cache.stats().free, cache.stats().cached) == (8, 2)
    cache.audit()


def test_a_leaf_that_two_leases_end_in_is_not_lengthened_under_either() -> None:
    cache = PrefixCache(10, 4)
    one = start(cache, run(8))
    two = cache.acquire(pack(run(9)))
    assert two.cached == 8
    cache.grow(one, 12)
    cache.commit(one, pack(run(12)))
    cache.audit()
    cache.release(one)
    assert cache.flush() == 1


def test_a_partial_page_that_is_covered_already_stays_private() -> None:
    cache = PrefixCache(10, 4)
    first = cache.acquire(pack(run(8)))
    second = cache.acquire(pack(run(8)))
    for lease, n in ((first, 7), (second, 6)):
        cache.grow(lease, n)
        cache.commit(lease, pack(run(n)))
    assert (cache.stats().cached, cache.stats().leased) == (2, 1)
    cache.release(second)
    assert cache.stats().leased == 0
    cache.audit()


def test_a_commit_must_extend_and_must_have_pages() -> None:
    cache = PrefixCache(10, 4)
    lease = start(cache, run(8))
    with pytest.raises(LeaseError, match="extend"):
        cache.commit(lease, pack(run(4)))
    with pytest.raises(LeaseError, match="extend"):
        cache.commit(lease, pack([5, *run(8, 1)]))
    with pytest.raises(LeaseError, match="2 pages of 4"):
        cache.commit(lease, pack(run(9)))
    cache.commit(lease, pack(run(8)))
    cache.audit()


# --- tail copies --------------------------------------------------------------------------------


def test_the_source_of_a_tail_copy_survives_eviction_until_the_copy_has_run() -> None:
    cache = PrefixCache(6, 4)
    serve(cache, run(8))
    lease = cache.acquire(pack([*run(6), 50, 51]))
    assert lease.copy is not None
    other = cache.acquire(pack(run(16, 200)))
    with pytest.raises(OutOfPages):
        cache.grow(other, 16)
    assert cache.flush() == 0
    cache.copied(lease)
    cache.copied(lease)
    assert lease.copy is None
    cache.grow(other, 16)
    assert cache.stats().evicted_pages == 1
    cache.audit()


def test_only_the_source_page_is_locked_for_a_copy() -> None:
    cache = PrefixCache(12, 4)
    serve(cache, run(40))
    lease = cache.acquire(pack([*run(6), 50, 51]))
    assert lease.copy is not None
    assert cache.stats().evictable == 8
    cache.release(lease)
    cache.audit()


def test_a_copy_that_would_leave_no_room_for_the_prompt_is_forgone() -> None:
    cache = PrefixCache(5, 4)
    serve(cache, run(20))
    prompt = [*run(6), *run(13, 100)]
    lease = cache.acquire(pack(prompt))
    assert (lease.cached, lease.copy) == (4, None)
    cache.grow(lease, len(prompt) + 1)
    assert cache.stats().evicted_pages == 4
    cache.audit()


def test_room_says_what_else_must_fit_before_a_copy_is_worth_its_source() -> None:
    cache = PrefixCache(5, 4)
    serve(cache, run(8))
    prompt = [*run(6), 50]
    lease = cache.acquire(pack(prompt), room=20)
    assert (lease.cached, lease.copy) == (4, None)
    cache.grow(lease, 20)
    cache.release(lease)
    serve(cache, run(8))
    lease = cache.acquire(pack(prompt), room=16)
    assert lease.cached == 6
    cache.grow(lease, 16)
    cache.audit()


def test_release_before_the_copy_has_run_lets_go_of_its_source() -> None:
    cache = PrefixCache(6, 4)
    serve(cache, run(8))
    lease = cache.acquire(pack([*run(6), 50]))
    assert lease.copy is not None
    cache.release(lease)
    assert cache.flush() == 2
    assert cache.stats().free == 6


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
