"""The engine loop: where the three stages meet, and the only place where they do.

The scheduler says who, the runner computes numbers, and (with the grammar room) the mask stage will
say which tokens. One turn: take in what came since the last one, plan, forward, sample, apply,
deliver. Knows no threads: `inprocess.py` turns the crank. Never imports torch.

A fault stays small: a runner that raises fails the rows of that step, an audit that fails drops the
cache and the live jobs, and the loop goes on in both cases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ..lang.errors import BranchworkError, EngineClosed, EngineError, to_wire
from ..radix.audit import AuditError
from .port import Command, End, Flush, Job, Peek, Reply, Update
from .sched.plan import StepPlan, StepResult
from .sched.scheduler import Scheduler

log = logging.getLogger("branchwork.engine")


class Runner(Protocol):
    """Turns plans into numbers. `forward` may return before the work is done, `sample` waits."""

    def forward(self, plan: StepPlan) -> object:
        """Run the copies, then the rows, up to the logits; a handle for `sample`."""

    def sample(self, pending: object) -> StepResult:
        """Draw and score; one result a row."""

    def close(self) -> None:
        """Let go of all memory. Idempotent."""


Deliver = Callable[[list[Update]], None]


class EngineLoop:
    """One scheduler, one runner, one place to deliver to."""

    def __init__(self, scheduler: Scheduler, runner: Runner, deliver: Deliver) -> None:
        """`deliver` gets all updates of a turn at once and must not block."""
        self._scheduler = scheduler
        self._runner = runner
        self._deliver = deliver

    @property
    def idle(self) -> bool:
        """Nothing to do until something is submitted."""
        return self._scheduler.idle

    def submit(self, job: Job) -> None:
        """Queue a job; a refusal is delivered as its end."""
        try:
            self._scheduler.add(job)
        except BranchworkError as error:
            self._deliver([Update(id=job.id, end=End(reason="error", error=to_wire(error)))])

    def cancel(self, job_id: str) -> None:
        """End a job now, if it still lives."""
        update = self._scheduler.cancel(job_id)
        if update is not None:
            self._deliver([update])

    def control(self, command: Command) -> Reply:
        """Answer a command between two steps."""
        cache = self._scheduler.cache
        tokens = pages = 0
        if isinstance(command, Peek):
            tokens = cache.peek(command.prompt, command.namespace)
        elif isinstance(command, Flush):
            pages = cache.flush()
        return Reply(tokens=tokens, pages=pages, stats=self._scheduler.stats())

    def turn(self) -> None:
        """Compute one step, if there is one, and deliver what came of it."""
        try:
            plan = self._scheduler.plan()
            if plan is not None:
                self._deliver(self._step(plan))
            elif not self._scheduler.idle:
                self._degrade("jobs are live but none of them can be planned")
            if self._scheduler.idle:
                self._audit()
        except Exception as error:
            log.exception("the scheduler failed")
            self._degrade(f"{type(error).__name__}: {error}")

    def _step(self, plan: StepPlan) -> list[Update]:
        try:
            result = self._runner.sample(self._runner.forward(plan))
        except Exception as error:
            log.exception("a model step of %d rows failed", len(plan.rows))
            return self._scheduler.fail(plan, error)
        return self._scheduler.apply(plan, result)

    def close(self) -> None:
        """End what is live, free the runner."""
        self._deliver(self._scheduler.reset(EngineClosed("the engine was closed")))
        self._runner.close()

    def _audit(self) -> None:
        """With no job live every page must be free or cached. The full check costs O(tree)."""
        leased = self._scheduler.stats().leased_pages
        if leased == 0:
            return
        try:
            self._scheduler.cache.audit()
        except AuditError as error:
            self._degrade(str(error))
        else:
            self._degrade(f"{leased} pages are still leased though no job is live")

    def _degrade(self, why: str) -> None:
        """Start over from an empty cache rather than serve wrong pages or die."""
        log.error("page accounting failed (%s): dropping the cache and the live jobs", why)
        lost = EngineError("the KV cache had to be dropped; this request is lost, send it again")
        self._deliver(self._scheduler.reset(lost))
