"""What the radix cache costs per token as the tree grows: match, commit, evict.

    python -m branchwork.bench.micro_radix [--tokens N] [--page-size P] [--seed S] [--json]

A seeded workload of shared prefixes (few long system prompts, more few-shot blocks below them,
endless questions) fills a tree to N tokens. At each size, medians over 200 calls of: `peek` and
`acquire` of a warm 8k-token prompt, `acquire` of workload prompts, `commit` of their new tokens,
and `grow` that must evict. Setup stands outside the clock; the garbage collector is off inside.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import sys
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter_ns

from rich.console import Console
from rich.table import Table

from ..radix.cache import PrefixCache
from ..radix.key import n_tokens, pack

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
WARM_TOKENS = 8192
SAMPLES = 200
EVICTED_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Line:
    """One size of the tree. Per token in ns, the warm prompt in microseconds; medians."""

    tree_tokens: int
    nodes: int
    peek_8k_us: float
    acquire_8k_us: float
    match_ns: float
    insert_ns: float
    evict_ns: float
    release_us: float


class Workload:
    """Prompts that share prefixes: 4 system prompts, 64 few-shot blocks, fresh questions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._systems = [self._ids(800) for _ in range(4)]
        self._shots = [(self._random.choice(self._systems), self._ids(400)) for _ in range(64)]

    def _ids(self, n: int) -> bytes:
        return pack(self._random.randrange(49_152) for _ in range(n))

    def prompt(self) -> bytes:
        """One prompt, about 1,350 tokens of which some 150 are new."""
        system, shot = self._random.choice(self._shots)
        return system + shot + self._ids(self._random.randrange(50, 250))

    def long(self) -> bytes:
        """A prompt of its own."""
        return self._ids(WARM_TOKENS)


def serve(cache: PrefixCache, key: bytes) -> None:
    """A whole life of a sequence, off the clock."""
    lease = cache.acquire(key)
    cache.grow(lease, n_tokens(key))
    cache.commit(lease, key)
    cache.release(lease)


def fill(cache: PrefixCache, workload: Workload, tokens: int) -> None:
    """Serve prompts until the tree holds about that many tokens."""
    while cache.stats().cached * cache.page_size < tokens:
        serve(cache, workload.prompt())


def measure_warm(cache: PrefixCache, warm: bytes) -> tuple[float, float]:
    """Median nanoseconds of a peek and an acquire of a prompt that is in the tree."""
    peek, acquire = [], []
    for _ in range(SAMPLES):
        start = perf_counter_ns()
        cache.peek(warm)
        peek.append(perf_counter_ns() - start)
        start = perf_counter_ns()
        lease = cache.acquire(warm)
        acquire.append(perf_counter_ns() - start)
        cache.release(lease)
    return median(peek), median(acquire)


def measure_lives(cache: PrefixCache, workload: Workload) -> tuple[float, float, float]:
    """Median ns a cached token of acquire, a new token of commit, a release, over the workload."""
    match, insert, release = [], [], []
    for _ in range(SAMPLES):
        key = workload.prompt()
        start = perf_counter_ns()
        lease = cache.acquire(key)
        match.append((perf_counter_ns() - start) / max(1, lease.cached))
        cache.grow(lease, n_tokens(key))
        new = n_tokens(key) - lease.cached
        start = perf_counter_ns()
        cache.commit(lease, key)
        insert.append((perf_counter_ns() - start) / new)
        start = perf_counter_ns()
        cache.release(lease)
        release.append(perf_counter_ns() - start)
    return median(match), median(insert), median(release)


def measure_eviction(cache: PrefixCache, workload: Workload) -> float:
    """Median ns a token of a grow that takes every page from a leaf."""
    evict = []
    hog = cache.acquire(workload.long())
    cache.grow(hog, cache.stats().free * cache.page_size)
    held = len(hog.pages) * cache.page_size
    for _ in range(SAMPLES // 10):
        held += EVICTED_TOKENS
        start = perf_counter_ns()
        cache.grow(hog, held)
        evict.append((perf_counter_ns() - start) / EVICTED_TOKENS)
    cache.release(hog)
    return median(evict)


def measure(cache: PrefixCache, workload: Workload, warm: bytes) -> Line:
    """One line of the table. Leaves the tree at about the size it had."""
    stats = cache.stats()
    serve(cache, warm)
    peek, acquire = measure_warm(cache, warm)
    match, insert, release = measure_lives(cache, workload)
    return Line(
        tree_tokens=stats.cached * cache.page_size,
        nodes=stats.nodes,
        peek_8k_us=peek / 1000,
        acquire_8k_us=acquire / 1000,
        match_ns=match,
        insert_ns=insert,
        evict_ns=measure_eviction(cache, workload),
        release_us=release / 1000,
    )


def run(tokens: int, page_size: int, seed: int) -> list[Line]:
    """All lines up to a tree of `tokens` tokens."""
    room = tokens + 2 * SAMPLES * 300 + 2 * WARM_TOKENS
    cache, workload = PrefixCache(room // page_size, page_size), Workload(seed)
    warm, lines = workload.long(), []
    serve(cache, warm)
    for size in [size for size in SIZES if size < tokens] + [tokens]:
        fill(cache, workload, size)
        gc.collect()
        gc.disable()
        try:
            lines.append(measure(cache, workload, warm))
        finally:
            gc.enable()
    cache.audit()
    return lines


def print_table(lines: list[Line], page_size: int) -> None:
    """The lines for people."""
    table = Table(title=f"radix cache, page size {page_size} (medians of {SAMPLES})")
    for name in ("tokens in tree", "nodes", "peek 8k µs", "acquire 8k µs"):
        table.add_column(name, justify="right")
    for name in ("match ns/tok", "insert ns/tok", "evict ns/tok", "release µs"):
        table.add_column(name, justify="right")
    for line in lines:
        counts = [f"{line.tree_tokens:,}", f"{line.nodes:,}"]
        table.add_row(*counts, *(f"{value:.1f}" for value in list(asdict(line).values())[2:]))
    Console().print(table)


def main(argv: list[str] | None = None) -> int:
    """Parse, measure, print. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Cost of the radix cache as its tree grows.")
    parser.add_argument("--tokens", type=int, default=SIZES[-1], help="final size of the tree")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args(argv)
    lines = run(args.tokens, args.page_size, args.seed)
    if args.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({**vars(args), **machine, "lines": [asdict(line) for line in lines]}))
    else:
        print_table(lines, args.page_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
