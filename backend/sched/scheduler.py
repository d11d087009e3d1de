"""Who computes what: continuous batching over one radix cache.

`add`, `plan`, `apply` (or `fail`), `cancel`; ints in, ints out. Never imports torch, never sees
text: a fake runner drives it through thousands of schedules in tests. One step at a time: every
`plan` is followed by `apply` or `fail` before the next. Called by `engine.py` alone.

Who owns a page, from admission to end:

    waiting      nothing
    running      lease.pages: [ shared with the tree | private, being written ]
                 after its prefill, and at its end, the computed part is committed: private pages
                 become the tree's (or are exchanged for the tree's where somebody was faster)
    retracted    committed, then the lease is released: the pages may be evicted or hit again
    ended        the same; on a failed step the private pages are freed uncommitted
"""

from __future__ import annotations

from dataclasses import dataclass

from ...lang.choose import pick
from ...lang.errors import BranchworkError, DuplicateRequest, Overloaded, StepFailed, to_wire
from ...radix.cache import Lease, OutOfPages, PrefixCache
from ...radix.key import pack
from ..config import SchedulerConfig
from ..port import End, Job, Stats, Update
from .budget import chunk, growth_reserve, pages_for, refuse_impossible
from .order import WaitingQueue, awaits_twin
from .plan import Copy, Row, RowResult, StepPlan, StepResult
from .rows import kept_nodes, path_moves, row_for
from .sequence import Sequence
from .stop import WatchFactory


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    retractions: int = 0


class Scheduler:
    """Plans steps for all live jobs and turns their results into updates."""

    def __init__(self, cache: PrefixCache, config: SchedulerConfig, watch: WatchFactory) -> None:
        """`watch` makes a stop watch for jobs that have stop strings."""
        self.cache = cache
        self.counters = Counters()
        self._config = config
        self._watch = watch
        self._waiting = WaitingQueue(config.max_overtakes)
        self._running: dict[str, Sequence] = {}  # in admission order
        self._in_flight: list[Sequence] = []  # one a row of the plan being computed
        self._moves: list[Copy] = []  # winners' KV to be moved before anything else happens
        self._news: list[Update] = []  # what came of the step being applied so far
        self._arrivals = 0

    # -- jobs come and go ---------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job. Raises a `RequestError` for one that is refused; nothing is kept of it."""
        if job.id in self._running or self._waiting.get(job.id) is not None:
            raise DuplicateRequest(
                f"a request with id {job.id!r} is still live; choose another id or wait for its end"
            )
        if len(self._waiting) >= self._config.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests are waiting already; try again later")
        seq = Sequence(job, self._arrivals)
        refuse_impossible(seq, self._config, self.cache.total_pages)
        if job.stop:
            seq.watch = self._watch(job.stop, seq.ids, job.min_tokens)
        self._arrivals += 1
        self._waiting.add(seq)

    def cancel(self, job_id: str) -> Update | None:
        """End a job now and free all it held; None when it is not live (ended already)."""
        running, waiting = self._running.get(job_id), self._waiting.get(job_id)
        if running is not None:
            self._let_go(running, keep=True)
        elif waiting is not None:
            self._waiting.remove(waiting)
        seq = running or waiting
        return None if seq is None else Update(id=job_id, end=_end_of(seq, "cancelled"))

    def reset(self, error: BranchworkError) -> list[Update]:
        """End every job with `error` and start over from an empty cache.

        For close, and for when the accounting cannot be trusted: leases are not given back one by
        one, the cache forgets them all. Results taken in before an `apply` broke off come first.
        """
        live = [*self._running.values(), *self._waiting]
        self._running = {}
        self._waiting = WaitingQueue(self._config.max_overtakes)
        self._in_flight = []
        self._moves = []
        self.cache.drop()
        self._news += (Update(id=seq.job.id, end=_end_of(seq, "error", error)) for seq in live)
        return self._take_news()

    @property
    def idle(self) -> bool:
        """Nothing to plan: no job lives and no KV waits to be moved."""
        return not self._running and not self._waiting and not self._moves

    # -- planning -----------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed."""
        assert not self._in_flight, "plan() before the last plan's apply() or fail()"
        if self._moves:  # on their own, so that no copy of the same plan can read a stale slot
            return StepPlan(rows=(), copies=tuple(self._moves))
        rows: list[Row] = []
        copies: list[Copy] = []
        budget = self._config.step_tokens
        budget -= self._plan_decodes(rows)
        budget -= self._plan_prefills(rows, budget)
        self._admit(rows, copies, budget)
        if not rows:
            return None
        self.counters.steps += 1
        return StepPlan(rows=tuple(rows), copies=tuple(copies))

    def _plan_decodes(self, rows: list[Row]) -> int:
        """One row for every sequence with just its unread token to compute, oldest first."""
        ready = [seq for seq in self._running.values() if not seq.prefilling]
        for seq in sorted(ready, key=lambda s: s.arrival):
            if seq.lease is None:  # retracted by an older one a moment ago
                continue
            if self._make_room(seq):
                self._put_row(rows, seq, 1)
        return len(rows)

    def _plan_prefills(self, rows: list[Row], budget: int) -> int:
        """The next chunk of every prompt under way, in admission order, while `budget` lasts."""
        spent = 0
        for seq in self._running.values():
            if seq.prefilling and spent < budget:
                spent += self._put_row(rows, seq, chunk(seq, self._config, budget - spent))
        return spent

    def _admit(self, rows: list[Row], copies: list[Copy], budget: int) -> None:
        """Move waiting sequences to running while tokens, places and pages last."""
        if budget <= 0 or len(self._running) >= self._config.max_running or not self._waiting:
            return
        prefilling = [seq for seq in self._running.values() if seq.prefilling]
        for seq in self._waiting.ranked(self.cache):
            if budget <= 0 or len(self._running) >= self._config.max_running:
                return
            if self._should_defer(seq, prefilling):
                continue
            if not self._start(seq):
                return  # whoever is next gets the next pages: nobody small slips past for ever
            prefilling.append(seq)
            assert seq.lease is not None
            if seq.lease.copy is not None:
                tail = seq.lease.copy
                copies.append(Copy(tail.src, 0, tail.dst, 0, tail.n))
            budget -= self._put_row(rows, seq, chunk(seq, self._config, budget))

    def _should_defer(self, seq: Sequence, prefilling: list[Sequence]) -> bool:
        if not self._config.defer_twins or self._waiting.aged(seq):
            return False
        return awaits_twin(seq, self._waiting.match(seq, self.cache), prefilling)

    def _start(self, seq: Sequence) -> bool:
        """Give `seq` a lease and let it run; False when the pages do not suffice."""
        lease = self._acquire(seq)
        if lease is None:
            return False
        self._waiting.admit(seq)
        self._running[seq.job.id] = seq
        seq.lease = lease
        seq.computed = lease.cached
        if seq.cached is None:
            seq.cached = lease.cached
            self.counters.prompt_tokens += seq.n_prompt
            self.counters.cached_tokens += seq.cached
        return True

    def _acquire(self, seq: Sequence) -> Lease | None:
        """Lock the match first, then see whether the rest fits beside the growth of the others.

        The order matters: locking shrinks what can be evicted.
        """
        lease = self.cache.acquire(seq.key, seq.job.namespace, seq.match_limit, room=seq.slots)
        wanted = pages_for(seq.slots, self._config.page_size) - len(lease.pages)
        reserve = growth_reserve(self._running.values(), self._config)
        if self.cache.available >= wanted + reserve:
            self.cache.grow(lease, seq.slots)
            return lease
        self.cache.release(lease)
        return None

    def _make_room(self, seq: Sequence) -> bool:
        """A page for `seq`'s next token, retracting the youngest others if need be.

        False when `seq` itself was the youngest and went back to waiting. The oldest sequence is
        never retracted, so it always finishes, so everybody does.
        """
        assert seq.lease is not None
        while True:
            try:
                self.cache.grow(seq.lease, seq.computed + 1)
                return True
            except OutOfPages:
                victim = max(self._running.values(), key=lambda s: s.arrival)
                self._retract(victim)
                if victim is seq:
                    return False

    def _retract(self, seq: Sequence) -> None:
        """Back to waiting; what was computed stays in the tree as long as it may."""
        self._let_go(seq, keep=True)
        seq.requeue()
        self._waiting.add(seq)
        self.counters.retractions += 1

    def _put_row(self, rows: list[Row], seq: Sequence, n: int) -> int:
        row = row_for(seq, n)
        rows.append(row)
        self._in_flight.append(seq)
        return len(row.tokens)

    # -- results ------------------------------------------------------------------------------

    def apply(self, plan: StepPlan, result: StepResult) -> list[Update]:
        """Take in a step's numbers; the news of the jobs it touched."""
        in_flight, self._in_flight = self._in_flight, []
        if not plan.rows:
            self._moves = []
        assert len(in_flight) == len(plan.rows) == len(result.rows)
        for seq, row, out in zip(in_flight, plan.rows, result.rows, strict=True):
            self._apply_row(seq, len(row.tokens), out)
        return self._take_news()

    def fail(self, plan: StepPlan, error: BaseException) -> list[Update]:
        """The step raised: its rows' jobs end with an error, their new KV is forgotten."""
        why = StepFailed(
            f"the model step failed ({type(error).__name__}: {error}); this request is lost, "
            "others go on: send it again"
        )
        if not plan.rows:  # the winners' slots were promised to the tree and never written
            return self.reset(why)
        in_flight, self._in_flight = self._in_flight, []
        for seq in in_flight:
            self._end(seq, "error", why)
        return self._take_news()

    def _apply_row(self, seq: Sequence, n_tokens: int, out: RowResult) -> None:
        assert seq.lease is not None
        self.cache.copied(seq.lease)
        seq.computed_total += n_tokens
        self.counters.computed_tokens += n_tokens
        if out.error is not None:
            self._end(seq, "error", StepFailed(out.error))
        elif seq.job.trie is not None and n_tokens == seq.remaining + len(seq.inner):
            self._settle_trie(seq, out)
        else:
            seq.computed += n_tokens
            seq.prompt_logprobs.extend(out.scores)
            if not seq.remaining:
                self._advance(seq, n_tokens, out)

    def _advance(self, seq: Sequence, n_tokens: int, out: RowResult) -> None:
        """All tokens known have KV: take in the drawn one, and see whether it ends the sequence."""
        if seq.drawn == 0 or n_tokens > 1:  # the prompt is done: siblings may hit it from now on
            assert seq.lease is not None
            self.cache.commit(seq.lease, pack(seq.ids))
        if out.token is None:
            self._end(seq, "length")
            return
        seq.ids.append(out.token)
        reason = None
        if out.token in seq.job.end_ids or (seq.watch and seq.watch.push(out.token)):
            reason = "stop"
        elif seq.drawn >= seq.job.max_tokens:
            reason = "length"
        if reason is not None:
            self._let_go(seq, keep=True)
        end = None if reason is None else _end_of(seq, reason)
        logprobs = () if out.logprob is None else (out.logprob,)
        top = (out.top,) if seq.job.top_logprobs else ()
        update = Update(
            id=seq.job.id, tokens=(out.token,), logprobs=logprobs, top_logprobs=top, end=end
        )
        self._news.append(update)

    def _settle_trie(self, seq: Sequence, out: RowResult) -> None:
        """Pick the winner, move its KV to the slots it continues in, commit, end."""
        trie, lease, base = seq.job.trie, seq.lease, len(seq.ids)
        assert trie is not None and lease is not None
        n_prompt_scores = len(out.scores) - len(trie.tokens)
        seq.prompt_logprobs.extend(out.scores[:n_prompt_scores])
        nodes = out.scores[n_prompt_scores:]
        paths = [[nodes[i] for i in path] for path in trie.paths]
        winner = pick(trie.method, paths, trie.n_bytes, trie.priors)
        kept = kept_nodes(trie, winner, seq.inner)
        slots = [(base + seq.inner.index(node), base + i) for i, node in enumerate(kept)]
        seq.ids.extend(trie.tokens[node] for node in kept)
        seq.computed = len(seq.ids)
        before = list(lease.pages)
        self.cache.commit(lease, pack(seq.ids))
        self._moves += path_moves(before, lease.pages, slots, self._config.page_size)
        self._let_go(seq, keep=True)
        end = _end_of(seq, "stop", node_logprobs=nodes, winner=winner)
        self._news.append(Update(id=seq.job.id, end=end))

    def _end(self, seq: Sequence, reason: str, error: BranchworkError | None = None) -> None:
        """End a running sequence; what it computed stays cached unless it failed."""
        self._let_go(seq, keep=error is None)
        self._news.append(Update(id=seq.job.id, end=_end_of(seq, reason, error)))

    def _let_go(self, seq: Sequence, keep: bool) -> None:
        """Commit what has KV (`keep`) and give the lease back."""
        assert seq.lease is not None
        if keep and seq.computed > 0:
            self.cache.commit(seq.lease, pack(seq.ids[: seq.computed]))
        self.cache.release(seq.lease)
        seq.lease = None
        del self._running[seq.job.id]

    def _take_news(self) -> list[Update]:
        news, self._news = self._news, []
        return news

    # -- counters -----------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Counters and gauges as of now."""
        cache, mine = self.cache.stats(), self.counters
        return Stats(
            total_pages=cache.total,
            free_pages=cache.free,
            cached_pages=cache.cached,
            leased_pages=cache.leased,
            running=len(self._running),
            waiting=len(self._waiting),
            steps=mine.steps,
            prompt_tokens=mine.prompt_tokens,
            cached_tokens=mine.cached_tokens,
            computed_tokens=mine.computed_tokens,
            retractions=mine.retractions,
            evicted_pages=cache.evicted_pages,
        )


def _end_of(
    seq: Sequence,
    reason: str,
    error: BranchworkError | None = None,
    node_logprobs: tuple[float, ...] = (),
    winner: int | None = None,
) -> End:
    return End(
        reason=reason,
        error=None if error is None else to_wire(error),
        prompt_logprobs=tuple(seq.prompt_logprobs),
        node_logprobs=node_logprobs,
        winner=winner,
        cached_tokens=seq.cached or 0,
        computed_tokens=seq.computed_total,
    )
