"""Keys, the free list and the eviction queue, each on its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwork.radix.evict import SMALL, EvictionQueue
from branchwork.radix.key import common_prefix, n_tokens, pack, unpack
from branchwork.radix.node import Node, Root
from branchwork.radix.pages import FreePages, PageError
from branchwork.radix.policy import lru

ids = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(ids)
def test_packing_keeps_the_ids_and_is_four_little_endian_bytes_each(tokens: list[int]) -> None:
    key = pack(tokens)
    assert unpack(key) == tokens
    assert n_tokens(key) == len(tokens)
    assert key == b"".join(token.to_bytes(4, "little") for token in tokens)


@pytest.mark.parametrize("bad", [[-1], [2**32], [1.5], ["1"]])
def test_what_is_no_token_id_is_refused_with_the_range(bad: list[int]) -> None:
    with pytest.raises(ValueError, match=r"0 to 2\*\*32 - 1"):
        pack(bad)


def test_a_key_of_odd_length_is_refused() -> None:
    with pytest.raises(ValueError):
        unpack(b"12345")


@given(ids, ids, ids)
def test_common_prefix_counts_whole_tokens(shared: list[int], a: list[int], b: list[int]) -> None:
    left, right = shared + a, shared + b
    naive = 0
    while naive < min(len(left), len(right)) and left[naive] == right[naive]:
        naive += 1
    assert common_prefix(pack(left), pack(right)) == naive


def test_tokens_that_differ_in_one_byte_only_are_different() -> None:
    for byte in range(4):
        assert common_prefix(pack([7, 0]), pack([7, 1 << (8 * byte)])) == 1


def test_pages_come_in_a_fixed_order_last_freed_first() -> None:
    free = FreePages(4)
    assert free.take(3) == [0, 1, 2]
    free.give([1, 0])
    assert free.take(3) == [0, 1, 3]
    assert len(free) == 0


def test_a_page_freed_twice_is_refused() -> None:
    free = FreePages(2)
    with pytest.raises(PageError, match="page 0 was freed twice"):
        free.give([0])
    page = free.take(1)
    free.give(page)
    with pytest.raises(PageError, match="twice"):
        free.give(page)


@pytest.mark.parametrize("page", [-1, 2])
def test_a_page_that_never_was_is_refused(page: int) -> None:
    free = FreePages(2)
    free.take(2)
    with pytest.raises(PageError, match="does not exist"):
        free.give([page])


def leaf(root: Root, born: int, last_use: int = 0) -> Node:
    node = Node(root, pack([born]), [born], born)
    node.last_use = last_use
    return node


def test_least_recent_goes_first_and_ties_first_in_first_out() -> None:
    root, queue = Root(""), EvictionQueue(lru)
    for born, last_use in [(1, 5), (2, 3), (3, 3), (4, 3), (5, 1)]:
        queue.push(leaf(root, born, last_use))
    order = []
    while (node := queue.pop()) is not None:
        order.append(node.born)
    assert order == [5, 2, 3, 4, 1]


def test_a_leaf_that_changed_its_key_in_the_queue_takes_its_new_place() -> None:
    root, queue = Root(""), EvictionQueue(lru)
    old, new = leaf(root, 1, 1), leaf(root, 2, 2)
    queue.push(old)
    queue.push(new)
    old.last_use = 3
    assert [queue.pop(), queue.pop(), queue.pop()] == [new, old, None]


def test_locked_dropped_and_inner_nodes_are_passed_over() -> None:
    root, queue = Root(""), EvictionQueue(lru)
    locked, dropped, inner, free = (leaf(root, born) for born in (1, 2, 3, 4))
    for node in (locked, dropped, inner, free):
        queue.push(node)
    locked.locks, dropped.parent, inner.children = 1, None, {b"": free}
    assert [queue.pop(), queue.pop()] == [free, None]


def test_the_queue_stays_small_however_often_one_leaf_is_used() -> None:
    root, queue = Root(""), EvictionQueue(lru)
    node = leaf(root, 1)
    for time in range(10 * SMALL):
        node.last_use = time
        queue.push(node)
    assert len(queue.heap) <= SMALL
    assert [queue.pop(), queue.pop()] == [node, None]
