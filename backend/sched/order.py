"""Who is admitted next: longest cached prefix first, with a bound on how often one is overtaken.

Waiting sequences stand in arrival order; `ranked` reads that queue through the cache. A request
that was overtaken `max_overtakes` times goes before all that were not, whatever their prefixes
(peers that sort by prefix alone let cold requests starve). Pure Python; the cache is asked by
`peek`, which changes nothing. Called by `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ...radix.cache import PrefixCache
from ...radix.key import common_prefix
from .sequence import Sequence

# Ranking costs one peek a request whenever the tree changed; only the oldest this many are ranked.
WINDOW = 128


class WaitingQueue:
    """Sequences that wait for admission. Iterates in arrival order."""

    def __init__(self, max_overtakes: int) -> None:
        """`max_overtakes`: later arrivals that may pass a request before it is next."""
        self._max_overtakes = max_overtakes
        self._by_id: dict[str, Sequence] = {}
        self._matches: dict[str, int] = {}
        self._version = -1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_id.values())

    def get(self, job_id: str) -> Sequence | None:
        """The waiting sequence of a job."""
        return self._by_id.get(job_id)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence by its arrival: new ones last, retracted ones back at their place."""
        last = next(reversed(self._by_id.values()), None)
        self._by_id[seq.job.id] = seq
        if last is not None and last.arrival > seq.arrival:
            ordered = sorted(self._by_id.values(), key=lambda s: s.arrival)
            self._by_id = {s.job.id: s for s in ordered}
        self._matches.pop(seq.job.id, None)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out (cancelled)."""
        del self._by_id[seq.job.id]
        self._matches.pop(seq.job.id, None)

    def admit(self, seq: Sequence) -> None:
        """Take a sequence out to run; every earlier arrival still waiting was overtaken once."""
        self.remove(seq)
        for other in self._by_id.values():
            if other.arrival > seq.arrival:
                break
            other.overtaken += 1

    def aged(self, seq: Sequence) -> bool:
        """Whether `seq` was overtaken as often as allowed."""
        return seq.overtaken >= self._max_overtakes

    def match(self, seq: Sequence, cache: PrefixCache) -> int:
        """Tokens of `seq` the cache holds now; remembered until the cache changes."""
        if self._version != cache.version:
            self._matches.clear()
            self._version = cache.version
        found = self._matches.get(seq.job.id)
        if found is None:
            found = cache.peek(seq.key, seq.job.namespace, seq.match_limit)
            self._matches[seq.job.id] = found
        return found

    def ranked(self, cache: PrefixCache) -> list[Sequence]:
        """The oldest `WINDOW` sequences, best first: aged ones, then longest match; ties FIFO."""
        return sorted(islice(self, WINDOW), key=lambda seq: self._rank(seq, cache))

    def _rank(self, seq: Sequence, cache: PrefixCache) -> tuple[int, int, int]:
        if self.aged(seq):
            return (0, 0, seq.arrival)
        return (1, -self.match(seq, cache), seq.arrival)


def awaits_twin(seq: Sequence, matched: int, prefilling: Iterable[Sequence]) -> bool:
    """Whether a running prefill will commit more of `seq`'s prefix than the `matched` tokens.

    Waiting for it costs the steps that prefill still takes and saves computing the difference
    again: of k requests with one cold prefix one computes it, the rest hit.
    """
    for other in prefilling:
        if other.job.namespace != seq.job.namespace:
            continue
        shared = common_prefix(seq.key, other.key)
        if min(shared, seq.match_limit) > matched:
            return True
    return False
