"""One live job: its tokens, how many of them have KV, and what must survive a retraction.

Only `scheduler.py` and its helpers touch this. A sequence owns no page: its lease does, and it has
a lease exactly while it runs. Everything else (ids drawn so far, the stop watch, collected prompt
log-probabilities, overtakes) stays when the lease is given back, so a retracted sequence resumes
as if nothing had happened.
"""

from __future__ import annotations

from ...radix.cache import Lease
from ...radix.key import pack, unpack
from ..port import Job
from .stop import StopWatch


class Sequence:
    """A job on its way. `ids` = prompt + drawn; the first `computed` of them have KV."""

    __slots__ = (
        "arrival",
        "cached",
        "computed",
        "computed_total",
        "ids",
        "inner",
        "job",
        "key",
        "lease",
        "n_prompt",
        "overtaken",
        "prompt_logprobs",
        "watch",
    )

    def __init__(self, job: Job, arrival: int) -> None:
        """`arrival` orders sequences for good: a retracted one keeps it."""
        self.job = job
        self.arrival = arrival
        self.watch: StopWatch | None = None  # set where the job has stop strings
        self.ids: list[int] = list(unpack(job.prompt))
        self.key = job.prompt  # packed ids as of the last (re)queueing: what the cache is asked for
        self.n_prompt = len(self.ids)
        self.computed = 0
        self.lease: Lease | None = None
        self.cached: int | None = None  # of the first admission; None until then
        self.computed_total = 0
        self.overtaken = 0
        self.prompt_logprobs: list[float] = []
        self.inner = inner_nodes(job)

    @property
    def remaining(self) -> int:
        """Tokens that still need KV before anything can be drawn or scored."""
        return len(self.ids) - self.computed

    @property
    def drawn(self) -> int:
        """Tokens drawn so far."""
        return len(self.ids) - self.n_prompt

    @property
    def prefilling(self) -> bool:
        """Running, with more than the one unread token to compute (or a trie not yet scored)."""
        return self.remaining > 1 or self.computed < self.n_prompt

    @property
    def slots(self) -> int:
        """Positions that need a page when everything known now is computed."""
        return len(self.ids) + len(self.inner)

    @property
    def most_slots(self) -> int:
        """Positions that may ever need a page: a last drawn token never gets KV."""
        return self.n_prompt + max(self.job.max_tokens - 1, 0) + len(self.inner)

    @property
    def next_logprob(self) -> int | None:
        """Next prompt position whose log-probability is still wanted, None when there is none."""
        start = self.job.logprobs_from
        if start is None:
            return None
        position = max(start, 1) + len(self.prompt_logprobs)
        return position if position < self.n_prompt else None

    @property
    def match_limit(self) -> int:
        """Tokens that may be served from the cache: never the position a wanted number needs."""
        wanted = self.next_logprob
        return len(self.ids) - 1 if wanted is None else wanted - 1

    def requeue(self) -> None:
        """Forget the KV (the lease is gone), keep everything else."""
        self.lease = None
        self.computed = 0
        self.key = pack(self.ids)


def inner_nodes(job: Job) -> tuple[int, ...]:
    """The trie nodes that have children, in order.

    Only they go through the model: a leaf is scored from its parent's distribution, and its own KV
    would serve nobody unless it wins, when the next call computes that one token.
    """
    if job.trie is None:
        return ()
    parents = set(job.trie.parents)
    return tuple(node for node in range(len(job.trie.tokens)) if node in parents)
