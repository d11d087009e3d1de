"""Commits and tail copies, one behaviour a test."""

from __future__ import annotations

import pytest
from radix_walks import nodes, run, serve, spell, start

from branchwork.radix.cache import LeaseError, OutOfPages, PageCopy, PrefixCache
from branchwork.radix.key import pack

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
