"""The interpreter: one run of one program, one method a node.

`append` checks and enqueues what the program says and returns at once; a pump task a branch
executes its nodes in order and settles their slots. Every task and every branch of a run is owned
here: `finish` waits for all, `abort` ends all. Hands the port Requests, never itself. Made by
`program`, used by `state` and `branches`; lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from . import check, ir
from . import request as wire
from .branch import Branch, Work, shown, subtree
from .calls import Calls
from .client import Client, complete_all
from .errors import BranchworkError, CallTimeout, Cancelled, ProgramError
from .feed import Feed
from .place import Place
from .slot import Slot
from .watchdog import Watchdog

ABORT_S = 30.0
"""How long a client may take to let go of cancelled calls."""


class Run:
    """One run. `feed` is told what is said, where somebody listens."""

    def __init__(self, client: Client, calls: Calls, feed: Feed | None = None) -> None:
        """Nothing runs until something is appended. Needs no running loop yet."""
        self._client = client
        self._calls = calls
        self._feed = feed
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: list[Branch] = []
        self._told: set[ProgramError] = set()
        self._closed = False
        self._watchdog = Watchdog()
        self.root = Branch(Place())
        self.root.started = True
        self.calls: list[Slot] = []

    # -- the front: what the program says -----------------------------------------------------

    def append(self, branch: Branch, nodes: Iterable[ir.Node]) -> None:
        """Check the nodes as a whole, then enqueue them. Returns before any call is made."""
        nodes = tuple(nodes)
        if not nodes:
            return
        self._need_live(branch, nodes[0].where)
        role = check.check(nodes, branch.slots, branch.role)
        made: set[str | None] = set()
        for node in nodes:
            if isinstance(node, ir.Gen | ir.Select):
                made.add(node.name)
            elif isinstance(node, ir.Ref) and node.name not in made:
                _need_text(branch.slots[node.name], node)
        for node in nodes:
            branch.nodes.append(node)
            self._push(branch, (node, self._slot(branch, node), ()))
        branch.role = role

    def fork(self, branch: Branch, node: ir.Fork) -> tuple[Branch, ...]:
        """Branches that start where the program's front is; they wait for the text before it."""
        self._need_live(branch, node.where)
        children = tuple(branch.child(i, node.scratch) for i in range(node.n))
        branch.n_forks += 1
        branch.nodes.append(node)
        self._push(branch, (node, None, children))
        return children

    def bind(self, branch: Branch, name: str, value: Any, where: str) -> None:
        """Bind a value that no call made."""
        self._need_live(branch, where)
        slot = Slot()
        slot.settle(value, value if isinstance(value, str) else None)
        branch.bind(name, slot)

    def open_span(self, branch: Branch, node: ir.SpanStart) -> Slot:
        """What is said from here on belongs to the span of this slot; spans may nest."""
        self._need_live(branch, node.where)
        slot = Slot()
        branch.nodes.append(node)
        self._push(branch, (node, slot, ()))
        return slot

    def close_span(self, branch: Branch, node: ir.SpanEnd, slot: Slot) -> None:
        """The span ends; its name is bound."""
        self._need_live(branch, node.where)
        branch.nodes.append(node)
        branch.bind(node.name, slot)
        self._push(branch, (node, slot, ()))

    def cancel(self, branch: Branch) -> None:
        """End a branch and all forked from it. What had not finished is `Cancelled` when read."""
        for each in subtree(branch):
            each.cancelled = True
            if each.task is not None:
                each.task.cancel()
            if each in self._failed:
                self._failed.remove(each)
            where = each.queue[0][0].where if each.queue else ""
            error = ProgramError("this branch was cancelled by the program", where)
            error.__cause__ = Cancelled("cancelled by the program")
            self._fail_all(each, error)

    def tell(self, error: ProgramError) -> ProgramError:
        """Note that the program is about to be told of `error`, and return it."""
        self._told.add(error)
        return error

    # -- the end ------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until all branches are done; raise the first failure nobody has been told of.

        Its caller notes the others on it (`untold`). The root's failure is raised in any case: its
        text is not what the program asked for.
        """
        while self._tasks:
            # Each call has its own time limit, so this wait is bounded.
            await asyncio.wait(self._tasks)
        self._close()
        for branch in subtree(self.root):
            branch.segments.clear()  # nothing can follow, and prompts are long
        errors = self.untold()
        root = self.root.error
        if root is not None and not self.root.cancelled:
            errors = [root, *(error for error in errors if error is not root)]
        if errors:
            raise errors[0]

    async def abort(self) -> None:
        """Cancel everything and wait until the client has let go of it."""
        self._close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ABORT_S)
        error = ProgramError("the run ended before this call was done")
        error.__cause__ = Cancelled("the run ended")
        for branch in subtree(self.root):
            self._fail_all(branch, error)

    def _close(self) -> None:
        self._closed = True
        self._watchdog.close()

    def untold(self) -> list[ProgramError]:
        """Failures the program has not been told of, in the order their calls were appended."""
        order = {slot.error: i for i, slot in reversed(list(enumerate(self.calls)))}
        found = [b.error for b in self._failed if b.error and b.error not in self._told]
        return sorted(found, key=lambda error: order.get(error, len(order)))

    # -- the queue ----------------------------------------------------------------------------

    def _need_live(self, branch: Branch, where: str) -> None:
        if self._closed:
            raise ProgramError("this run is over; start a new one to append more", where)
        if branch.cancelled:
            raise ProgramError("this branch was cancelled; nothing can be appended to it", where)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ProgramError(
                "a state can be appended to by its program's own body only, not from another "
                "thread; hand the text over to the body",
                where,
            ) from None

    def _slot(self, branch: Branch, node: ir.Node) -> Slot | None:
        if isinstance(node, ir.Gen | ir.Select):
            slot = Slot(node, branch.place, branch.n_calls)
            branch.n_calls += 1
            branch.last = slot
            self.calls.append(slot)
            if node.name is not None:
                branch.bind(node.name, slot)
            return slot
        if isinstance(node, ir.Ref):
            return branch.slots[node.name]
        return None

    def _push(self, branch: Branch, work: Work) -> None:
        if branch.error is not None:
            if isinstance(work[0], _SETTLES) and work[1] is not None:
                work[1].fail(branch.error)
            return
        branch.queue.append(work)
        if branch.started and branch.task is None:
            self._advance([branch])

    def _advance(self, branches: list[Branch]) -> None:
        """Execute what needs no waiting, here and in branches that start; pumps do the rest."""
        for branch in branches:
            while branch.queue:
                node, slot, children = branch.queue[0]
                step = _AT_ONCE.get(type(node))
                if step is None:
                    if branch.task is None:
                        self._start_pump(branch)
                    break
                step(self, branch, node, slot)
                branch.queue.popleft()
                for child in children:
                    if not child.cancelled:
                        child.start_at(branch)
                        branches.append(child)

    def _start_pump(self, branch: Branch) -> None:
        task = asyncio.get_running_loop().create_task(self._pump(branch))
        branch.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, branch: Branch) -> None:
        """Execute the queue's head, a call, and go on until the queue is empty."""
        queue = branch.queue
        task = asyncio.current_task()
        assert task is not None
        while queue and branch.error is None:
            node, slot, _ = queue[0]
            limit = self._calls.limit(node)
            self._watchdog.begin(task, limit)
            try:
                await self._call(branch, node, slot)
                if queue:  # empty where a client ignored that the branch was cancelled
                    queue.popleft()
                    self._advance([branch])
            except asyncio.CancelledError:
                if self._watchdog.was_late(task):
                    self._fail(branch, node, _late(limit))
                elif task.cancelling():
                    raise
                else:
                    self._fail(branch, node, Cancelled("the client cancelled this call"))
            except Exception as error:
                self._fail(branch, node, error)
            finally:
                self._watchdog.end(task)
        branch.task = None

    def _fail(self, branch: Branch, node: ir.Node, error: Exception) -> None:
        """A call failed: so do all that follow it in this branch and in branches it would start."""
        failure = ProgramError(_message(error), node.where, _call_name(node) + branch.place.label())
        failure.__cause__ = error
        self._failed.append(branch)
        self._fail_all(branch, failure)

    def _fail_all(self, branch: Branch, error: ProgramError) -> None:
        branches = [branch]
        for each in branches:
            if each.error is None:
                each.error = error
            for node, slot, children in each.queue:
                if isinstance(node, _SETTLES) and slot is not None:
                    slot.fail(error)
                branches.extend(children)
            each.queue.clear()

    # -- one method a node --------------------------------------------------------------------

    def _text(self, branch: Branch, node: ir.Text, slot: Slot | None) -> None:
        branch.say(node.text)
        self._heard(branch)

    def _role_start(self, branch: Branch, node: ir.RoleStart, slot: Slot | None) -> None:
        branch.mark(wire.RoleStart(node.role))
        self._heard(branch)

    def _role_end(self, branch: Branch, node: ir.RoleEnd, slot: Slot | None) -> None:
        branch.mark(wire.RoleEnd(node.role))
        self._heard(branch)

    def _ref(self, branch: Branch, node: ir.Ref, slot: Slot | None) -> None:
        # In-order execution: what the name stood for when it was appended is settled by now.
        assert slot is not None and slot.done and slot.raw is not None
        branch.say(slot.raw)
        self._heard(branch)

    def _span_start(self, branch: Branch, node: ir.SpanStart, slot: Slot | None) -> None:
        assert slot is not None
        branch.spans[slot] = len(branch.said)

    def _span_end(self, branch: Branch, node: ir.SpanEnd, slot: Slot | None) -> None:
        assert slot is not None
        text = branch.since(slot)
        slot.settle(text, text)
        if self._feed is not None:
            self._feed.span(branch.place, node.name, text)

    def _heard(self, branch: Branch) -> None:
        """Let the listener have the piece just said."""
        if self._feed is not None:
            ear = self._feed.ear(branch.place, None)
            if ear is not None:
                ear(shown(branch.said[-1:]))

    def _nothing(self, branch: Branch, node: ir.Node, slot: Slot | None) -> None:
        """Fork and join: `_advance` starts the children, `branches` binds the lists."""

    async def _call(self, branch: Branch, node: ir.Node, slot: Slot | None) -> None:
        if not isinstance(node, ir.Gen | ir.Select):
            raise ProgramError(f"this version cannot execute a {type(node).__name__}", node.where)
        assert slot is not None
        requests = self._calls.requests(node, slot, branch.prompt())
        hear = None if self._feed is None else self._feed.ear(branch.place, node.name)
        finishes = await complete_all(self._client, requests, hear)
        branch.adopt(finishes[0])
        slot.settle(self._calls.value(node, finishes), finishes[0].text, finishes)
        for finish in finishes:
            self._calls.warn_if_cut(node, finish)


_AT_ONCE: dict[type[ir.Node], Callable[..., None]] = {
    ir.Text: Run._text,
    ir.RoleStart: Run._role_start,
    ir.RoleEnd: Run._role_end,
    ir.Ref: Run._ref,
    ir.Fork: Run._nothing,
    ir.Join: Run._nothing,
    ir.SpanStart: Run._span_start,
    ir.SpanEnd: Run._span_end,
}

_SETTLES = (ir.Gen, ir.Select, ir.SpanEnd)
"""Nodes that give their slot its value."""


def _need_text(slot: Slot, node: ir.Ref) -> None:
    if slot.done and slot.error is None and slot.raw is None:
        raise ProgramError("only text can be referred to", node.where, node.name)


def _call_name(node: ir.Node) -> str:
    return getattr(node, "name", None) or type(node).__name__.lower()


def _late(limit: float) -> CallTimeout:
    return CallTimeout(f"the call took longer than {limit:g} s; give it a longer timeout")


def _message(error: Exception) -> str:
    if isinstance(error, BranchworkError):
        return f"the call failed: {error}"
    return f"the call failed: {type(error).__name__}: {error}"
