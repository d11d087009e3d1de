"""The jewel: random lives of leases against a naive model of what KV lies where.

The model is a fake KV store: `kv[page][row]` names the whole prefix (namespace and tokens) whose
last token was written there. Leases write it as a runner would; nothing else does. So after every
rule, whatever the cache says that a slot holds can be checked against what was really written
there, across evictions, remaps, copies and page reuse. What is resident is read off the tree in
the dumbest way (every path spelled out), and a match must equal the longest common prefix with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from radix_walks import resident, spell

from branchwork.radix.cache import Lease, LeaseError, OutOfPages, PrefixCache
from branchwork.radix.key import pack, unpack

NAMESPACES = ("", "salt")
Prefix = tuple[str, tuple[int, ...]]

# Few ids, so that sequences share beginnings; long runs, so that they cross several pages.
runs = st.lists(st.integers(0, 1), min_size=1, max_size=12)
repeats = st.integers(1, 12)


@dataclass
class Live:
    """A live sequence: its lease, its tokens, how many of them have KV."""

    lease: Lease
    namespace: str
    tokens: list[int]
    computed: int
    committed: int
    copied: bool


class CacheMachine(RuleBasedStateMachine):
    """Leases come, compute, commit and go in any order; the pool is always too small."""

    lives = Bundle("lives")
    prompts = Bundle("prompts")

    @initialize(page_size=st.sampled_from([1, 4, 16]), capacity=st.integers(48, 300))
    def start(self, page_size: int, capacity: int) -> None:
        self.page_size = page_size
        self.n_pages = capacity // page_size
        self.cache = PrefixCache(self.n_pages, page_size)
        self.kv: list[list[Prefix | None]] = [[None] * page_size for _ in range(self.n_pages)]
        self.live: list[Live] = []
        self.before: set[Prefix] = set()
        self.lost_pages = self.lost_before = 0

    # --- prompts -------------------------------------------------------------------------------

    @initialize(target=prompts)
    def first_prompts(self) -> object:
        return multiple((), (0,) * 20, (0,) * 16 + (1, 2) * 9)

    @rule(target=prompts, base=prompts, keep=st.integers(0, 60), run=runs, times=repeats)
    def branch(self, base: tuple[int, ...], keep: int, run: list[int], times: int) -> object:
        return (base[:keep] + tuple(run) * times)[:80]

    @rule(target=prompts, live=lives)
    def continue_a_sequence(self, live: Live) -> object:
        return tuple(live.tokens)

    # --- a lease's life ------------------------------------------------------------------------

    @rule(
        target=lives,
        prompt=prompts,
        namespace=st.sampled_from(NAMESPACES),
        limit=st.none() | st.integers(-1, 70),
        room=st.just(0) | st.integers(0, 200),
    )
    def acquire(
        self, prompt: tuple[int, ...], namespace: str, limit: int | None, room: int = 0
    ) -> object:
        cache, size = self.cache, self.page_size
        most = len(prompt) - 1 if limit is None else min(limit, len(prompt) - 1)
        known = self._longest_match(namespace, prompt[: max(0, most)])
        version = cache.version
        before = (cache.stats(), spell(cache))
        assert cache.peek(pack(prompt), namespace, limit) == known
        assert (cache.stats(), spell(cache), cache.version) == (*before, version)
        lease = cache.acquire(pack(prompt), namespace, limit, room)
        rows = known % size
        if lease.cached != known:  # the copy was forgone, which must have had its reason
            assert lease.cached == known - rows
            assert lease.copy is None
            wanted = -(-max(room, len(prompt) + 1) // size) - known // size
            assert wanted > cache.available - 1
        if cache.stats().evicted_pages == before[0].evicted_pages:
            assert (spell(cache), cache.version) == (before[1], version)
        live = Live(lease, namespace, list(prompt), lease.cached, 0, lease.copy is None)
        for p in range(lease.cached):
            page, row = lease.pages[p // size], p % size
            if lease.copy is not None and p // size == lease.cached // size:
                assert lease.copy.dst == page
                assert row < lease.copy.n == rows
                page = lease.copy.src
            assert self.kv[page][row] == (namespace, prompt[: p + 1])
        self.live.append(live)
        return live

    @rule(target=lives, live=lives)
    def acquire_a_twin(self, live: Live) -> object:
        """The same tokens again, while the first is at work on them."""
        return self.acquire(tuple(live.tokens) or (0,), live.namespace, None)

    @rule(live=lives)
    def run_copy(self, live: Live) -> None:
        """The runner copies; before this, the source must not have been touched."""
        copy = live.lease.copy
        if copy is not None:
            self.kv[copy.dst][: copy.n] = self.kv[copy.src][: copy.n]
        self.cache.copied(live.lease)
        assert live.lease.copy is None
        live.copied = True

    @rule(live=lives, run=runs, chunk=st.integers(1, 40), greedy=st.booleans())
    def compute(self, live: Live, run: list[int], chunk: int, greedy: bool) -> None:
        """Grow, then write KV for the rest of the prompt, or for drawn tokens behind it.

        Unless `greedy`, a sequence asks for no more than there is.
        """
        if not live.copied:
            self.run_copy(live)
        if len(live.tokens) == live.computed:
            live.tokens += run
        wanted, lease = min(live.computed + chunk, len(live.tokens)), live.lease
        if not greedy:
            room = (len(lease.pages) + self.cache.available) * self.page_size
            wanted = max(live.computed, min(wanted, room))
        if not self._grow(live, wanted):
            return
        for p in range(live.computed, wanted):
            page, row = lease.pages[p // self.page_size], p % self.page_size
            self.kv[page][row] = (live.namespace, tuple(live.tokens[: p + 1]))
        live.computed = wanted

    @rule(prompt=prompts, namespace=st.sampled_from(NAMESPACES))
    def serve(self, prompt: tuple[int, ...], namespace: str) -> None:
        """A whole life in one rule, so that there is something in the tree."""
        live = self.acquire(prompt, namespace, None)
        self.compute(live, [0], 80, False)
        self.commit(live, 0)
        self.release(live)

    def _grow(self, live: Live, wanted: int) -> bool:
        cache, lease = self.cache, live.lease
        need = max(0, -(-wanted // self.page_size) - len(lease.pages))
        available, pages, stats = cache.available, list(lease.pages), cache.stats()
        try:
            cache.grow(lease, wanted)
        except OutOfPages as error:
            assert (error.wanted, error.available) == (need, available)
            assert need > available
            assert (lease.pages, cache.stats()) == (pages, stats)
            return False
        assert need <= available
        assert cache.available == available - need
        assert lease.pages[: len(pages)] == pages
        return True

    @rule(live=lives, back=st.just(0) | st.integers(0, 20))
    def commit(self, live: Live, back: int) -> None:
        """Commit all or most of what has KV."""
        end = max(live.lease.cached, live.committed, live.computed - back)
        if not live.copied:
            self.run_copy(live)
        key = tuple(live.tokens[:end])
        evicted = self.cache.stats().evicted_pages
        self.cache.commit(live.lease, pack(key))
        live.committed = end
        assert self.cache.stats().evicted_pages == evicted, "a commit takes no pages"
        assert self._longest_match(live.namespace, key) == end, "what is committed can be matched"

    @rule(live=lives, run=runs, chunks=st.lists(st.integers(1, 9), min_size=1, max_size=5))
    def steps(self, live: Live, run: list[int], chunks: list[int]) -> None:
        """As a scheduler does: compute a little, commit it, again."""
        for chunk in chunks:
            self.compute(live, run, chunk, False)
            self.commit(live, 0)
            self.cache.audit()

    @rule(live=consumes(lives))
    def release(self, live: Live) -> None:
        self.cache.release(live.lease)
        self.live.remove(live)
        try:
            self.cache.release(live.lease)
        except LeaseError:
            return
        raise AssertionError("a second release went through")

    # --- everything else -----------------------------------------------------------------------

    @precondition(lambda self: len(self.before) > 50)
    @rule(namespace=st.sampled_from([None, *NAMESPACES, "unknown"]))
    def flush(self, namespace: str | None) -> None:
        before = self.cache.stats()
        freed = self.cache.flush(namespace)
        after = self.cache.stats()
        assert after.free == before.free + freed
        assert after.evictable == before.evictable - freed
        if namespace is None:
            assert after.evictable == 0
        self.lost_pages += freed

    def teardown(self) -> None:
        """When the last lease has gone, every page can be had again."""
        if not hasattr(self, "cache"):
            return
        for live in self.live:
            self.cache.release(live.lease)
        assert self.cache.available == self.n_pages
        self.cache.flush()
        self.cache.audit()
        stats = self.cache.stats()
        assert (stats.free, stats.nodes, stats.namespaces) == (self.n_pages, 0, 0)

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.cache.audit()
        stats = self.cache.stats()
        assert stats.free + stats.cached + stats.leased == stats.total
        assert self.cache.available == stats.free + stats.evictable

    @invariant()
    def every_slot_holds_what_it_should(self) -> None:
        for live in self.live:
            for p in range(live.lease.cached if not live.copied else 0, live.computed):
                page, row = live.lease.pages[p // self.page_size], p % self.page_size
                assert self.kv[page][row] == (live.namespace, tuple(live.tokens[: p + 1]))
            if live.lease.copy is not None:
                copy, start = live.lease.copy, live.lease.cached - live.lease.copy.n
                for row in range(copy.n):
                    tokens = tuple(live.tokens[: start + row + 1])
                    assert self.kv[copy.src][row] == (live.namespace, tokens)
        for namespace, tokens, pages in spell(self.cache):
            for p in range(len(tokens)):
                page, row = pages[p // self.page_size], p % self.page_size
                assert self.kv[page][row] == (namespace, tokens[: p + 1])

    @invariant()
    def nothing_is_forgotten_but_by_eviction(self) -> None:
        now = resident(self.cache)
        lost = self.cache.stats().evicted_pages + self.lost_pages
        if lost == self.lost_before:
            assert self.before <= now
        self.before, self.lost_before = now, lost

    def _longest_match(self, namespace: str, tokens: tuple[int, ...]) -> int:
        """The longest prefix of `tokens` that is resident, by looking at every one."""
        known = resident(self.cache)
        return max(
            (n for n in range(1, len(tokens) + 1) if (namespace, tokens[:n]) in known), default=0
        )


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def test_the_spelling_of_a_tree_is_what_was_committed() -> None:
    cache = PrefixCache(8, 4)
    lease = cache.acquire(pack([1, 2, 3, 4, 5]))
    cache.grow(lease, 5)
    cache.commit(lease, pack([1, 2, 3, 4, 5]))
    assert [(n, t) for n, t, _ in spell(cache)] == [("", (1, 2, 3, 4, 5))]
    assert unpack(lease.key) == [1, 2, 3, 4, 5]
