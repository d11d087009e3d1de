"""A runner without a model, whose every mistake in page handling becomes a wrong token.

KV is simulated: each (page, row) slot holds a digest of the whole token prefix that ends there. A
row is computed by reading the digests before its start and chaining on; copies move digests. The
next token is a pure function of the digest, so a sequence's tokens come out right only if every
page, copy, match and eviction was right. `expected` runs the same function without any cache.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence

from branchwork.backend.port import Job, Rules
from branchwork.backend.sched.plan import Draw, Past, Row, RowResult, StepPlan, StepResult
from branchwork.radix.key import pack, unpack

Digest = bytes
START = b"start"


def chain(digest: Digest, token: int) -> Digest:
    return hashlib.blake2b(digest + token.to_bytes(4, "little"), digest_size=8).digest()


def chain_all(ids: Sequence[int], digest: Digest = START) -> Digest:
    for token in ids:
        digest = chain(digest, token)
    return digest


def next_token(digest: Digest, vocab: Sequence[int], draw: Draw) -> int:
    """Greedy: a function of the prefix. With temperature also of seed and position, with penalties
    of what they count. Never a banned id.
    """
    salt = f"{draw.seed}:{draw.position}" if draw.rules.temperature > 0 else ""
    if draw.past != Past():
        salt += f"{sorted(draw.past.seen)}{sorted(draw.past.drawn)}"
    value = hashlib.blake2b(digest + salt.encode(), digest_size=8).digest()
    allowed = [token for token in vocab if token not in draw.banned]
    return allowed[int.from_bytes(value, "little") % len(allowed)]


def token_logprob(digest: Digest, token: int) -> float:
    value = hashlib.blake2b(chain(digest, token), digest_size=8).digest()
    return -math.log1p(int.from_bytes(value, "little") % 10_000)


def expected(
    prompt: Sequence[int], n: int, vocab: Sequence[int], sampling: tuple[float, int] = (0.0, 0)
) -> list[int]:
    """The `n` tokens that follow `prompt`, straight from the definition."""
    rules = Rules(temperature=sampling[0])
    job = Job(id="", prompt=pack(prompt), max_tokens=n, seed=sampling[1], rules=rules)
    return expected_of(job, vocab)


def expected_of(job: Job, vocab: Sequence[int]) -> list[int]:
    """The `max_tokens` tokens of a job that nothing ends sooner, straight from the definition."""
    ids = unpack(job.prompt)
    n_prompt, digest, rules = len(ids), chain_all(ids), job.rules
    for n in range(job.max_tokens):
        drawn = ids[n_prompt:]
        past = Past(
            seen=tuple(set(ids)) if rules.repetition_penalty != 1 else (),
            drawn=tuple((t, drawn.count(t)) for t in set(drawn)) if rules.counts_drawn else (),
        )
        banned = job.end_ids if n < job.min_tokens else ()
        draw = Draw(rules, job.seed, len(ids), past=past, banned=banned)
        ids.append(next_token(digest, vocab, draw))
        digest = chain(digest, ids[-1])
    return ids[n_prompt:]


class FakeRunner:
    """See the module docstring. `fail_steps`: numbers of steps that raise instead of computing."""

    def __init__(self, n_pages: int, page_size: int, vocab: Sequence[int] = range(50)) -> None:
        self.page_size = page_size
        self.vocab = vocab
        # (digest of the prefix before this token, digest of the prefix that ends with it)
        self.slots: list[list[tuple[Digest, Digest] | None]]
        self.slots = [[None] * page_size for _ in range(n_pages)]
        self.steps = 0
        self.fail_steps: set[int] = set()
        self.gate = threading.Event()  # steps wait for it; open unless a test shuts it
        self.gate.set()
        self.closed = False

    def forward(self, plan: StepPlan) -> object:
        assert self.gate.wait(30), "the gate was left shut"
        self.steps += 1
        if self.steps - 1 in self.fail_steps:
            raise RuntimeError("injected failure")
        read = [self.slots[c.src][c.src_row : c.src_row + c.n] for c in plan.copies]
        for copy, digests in zip(plan.copies, read, strict=True):
            assert all(d is not None for d in digests), "a copy read slots that were never written"
            self.slots[copy.dst][copy.dst_row : copy.dst_row + copy.n] = digests
        # Rows of one step must not see each other's writes: read all starts first.
        starts = [self._digest_before(row) for row in plan.rows]
        return [self._run(row, start) for row, start in zip(plan.rows, starts, strict=True)]

    def sample(self, pending: object) -> StepResult:
        assert isinstance(pending, list)
        return StepResult(rows=tuple(pending))

    def close(self) -> None:
        self.closed = True

    def _slot(self, row: Row, position: int) -> tuple[int, int]:
        return row.pages[position // self.page_size], position % self.page_size

    def _digest_before(self, row: Row) -> Digest:
        """Digest of everything before the row; every slot on the way must follow from the last."""
        digest = START
        for position in range(row.start):
            page, offset = self._slot(row, position)
            slot = self.slots[page][offset]
            assert slot is not None, f"position {position} was never written"
            assert slot[0] == digest, f"position {position} holds another sequence's KV"
            digest = slot[1]
        return digest

    def _run(self, row: Row, start: Digest) -> RowResult:
        digests: list[Digest] = []
        for i, token in enumerate(row.tokens):
            parent = i - 1 if row.parents is None else row.parents[i]
            before = digests[parent] if parent >= 0 else start
            digests.append(chain(before, token))
            page, offset = self._slot(row, row.start + i)
            self.slots[page][offset] = (before, digests[-1])
        scores = tuple(token_logprob(digests[i], token) for i, token in row.scores)
        if row.draw is None:
            return RowResult(scores=scores)
        return RowResult(
            token=next_token(digests[-1], self.vocab, row.draw),
            logprob=-1.0 if row.draw.logprob else None,
            scores=scores,
            top=tuple((i, -1.0 - i) for i in range(row.draw.top)),
        )
