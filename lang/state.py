"""The state a program appends to and reads from: the user's handle on one branch.

A thin face: what is known lives in `branch`, what happens in `run`. Reading a name waits for that
name only: a `def` body steps aside (`bridge`), an `async def` body writes `await s.get(name)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import bridge, dsl, ir
from . import request as wire
from .branch import Branch, shown, subtree
from .branches import Branches, Scratch
from .check import unbound
from .dsl import Expr
from .errors import InvalidRequest, ProgramError
from .explain import Report, record
from .place import where
from .request import ChoiceScore
from .run import Run
from .slot import Meta, Slot


class State:
    """One branch of a running or finished program.

    `s += text_or_expression` appends and returns at once; calls are made in order in the
    background. A call that failed is raised as a `ProgramError` where a value of it is first read,
    and at the end of the run.
    """

    def __init__(self, run: Run, branch: Branch) -> None:
        """Made by the library; a program is handed its state."""
        self._run = run
        self._branch = branch
        self.returned: Any = None
        """What the program's function returned (the root's state only)."""

    # -- appending ----------------------------------------------------------------------------

    def __iadd__(self, other: str | Expr) -> State:
        self._run.append(self._branch, dsl.nodes_of(other))
        return self

    def append(self, *parts: str | Expr) -> None:
        """Append several pieces, as `+=` does."""
        for part in parts:
            self._run.append(self._branch, dsl.nodes_of(part))

    def set(self, name: str, value: Any) -> None:
        """Bind `name` to a value of the program's own. It joins no prompt."""
        self._run.bind(self._branch, name, value, where())

    def role(self, name: str, *parts: str | Expr) -> _RoleScope:
        """`with s.role("tool"):` holds a message open; with parts, a whole message is appended."""
        return _RoleScope(self, name, parts)

    def system(self, *parts: str | Expr) -> _RoleScope:
        """A system message: `s.system("...")`, or `with s.system():` around what it holds."""
        return self.role("system", *parts)

    def user(self, *parts: str | Expr) -> _RoleScope:
        """A user message; see `system`."""
        return self.role("user", *parts)

    def assistant(self, *parts: str | Expr) -> _RoleScope:
        """An assistant message; see `system`."""
        return self.role("assistant", *parts)

    def begin(self, role: str) -> None:
        """Open a message. `end` closes it."""
        self._run.append(self._branch, (ir.RoleStart(role, where()),))

    def end(self) -> None:
        """Close the open message."""
        role = self._branch.role
        if role is None:
            raise ProgramError("no role is open here", where(), "end")
        self._run.append(self._branch, (ir.RoleEnd(role, where()),))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """`with s.span("name"):` what is appended inside, calls included, is bound to `name`.

        Read like any other name, once the block is over. It is the text as `text()` shows it. An
        exception in the block leaves the name unbound.
        """
        here = where()
        slot = self._run.open_span(self._branch, ir.SpanStart(name, here))
        yield
        self._run.close_span(self._branch, ir.SpanEnd(name, here), slot)

    # -- branching ----------------------------------------------------------------------------

    def fork(self, n: int = 1) -> Branches:
        """`n` branches that continue from here. Legal anywhere; the parent stays usable.

        A branch nobody joins is still run to its end by the run, unless it is cancelled.
        """
        here = where()
        if not isinstance(n, int) or n < 1:
            raise InvalidRequest(
                f"[{here}] fork: the number of branches must be at least 1, found {n!r}"
            )
        twigs = self._run.fork(self._branch, ir.Fork(n, where=here))
        return Branches(self, tuple(State(self._run, twig) for twig in twigs))

    def copy(self) -> Scratch:
        """`with s.copy() as t:` a branch of one, for thoughts that never join this text.

        Its calls run to their end after the block too; an exception in the block cancels them.
        """
        (twig,) = self._run.fork(self._branch, ir.Fork(1, scratch=True, where=where()))
        return Scratch(State(self._run, twig))

    def cancel(self) -> None:
        """End this branch and all forked from it: pending calls stop and free what they hold.

        Values that were done stay readable, others raise; joins hold None for a cancelled branch.
        """
        self._run.cancel(self._branch)

    # -- reading ------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self._wait(name).value

    async def get(self, name: str) -> Any:
        """The value of `name`, awaited: for `async def` bodies."""
        slot = self._find(name)
        if not slot.done:
            await slot.waiter()
        return self._good(slot).value

    def raw(self, name: str) -> str:
        """The text of `name` as the model wrote it."""
        slot = self._wait(name)
        if slot.raw is None:
            raise ProgramError("this name holds no text of a call", where(), name)
        return slot.raw

    def meta(self, name: str) -> Meta:
        """What the call `name` cost and how it ended."""
        slot = self._wait(name)
        if slot.meta is None:
            raise ProgramError("no call made this value, so it has no meta", where(), name)
        return slot.meta

    def scores(self, name: str) -> dict[str, ChoiceScore]:
        """How each choice of the `select` called `name` did, in the order they were given."""
        slot = self._wait(name)
        if not slot.scores:
            raise ProgramError(
                "this value was not made by a select; it has no scores", where(), name
            )
        return {score.text: score for score in slot.scores}

    def __contains__(self, name: object) -> bool:
        return name in self._branch.slots

    @property
    def cancelled(self) -> bool:
        """Whether the program cancelled this branch."""
        return self._branch.cancelled

    def names(self) -> tuple[str, ...]:
        """Names bound so far, those still pending included."""
        return tuple(self._branch.slots)

    def nodes(self) -> tuple[ir.Node, ...]:
        """What was appended to this branch, as instructions (`ir.encode` serialises them)."""
        return tuple(self._branch.nodes)

    def messages(self) -> list[dict[str, str]]:
        """All that was said, as `{"role": ..., "content": ...}`; text outside roles has role ""."""
        found: list[dict[str, str]] = []
        role = ""
        for piece in self._said():
            if isinstance(piece, wire.Text):
                if not found or found[-1]["role"] != role:
                    found.append({"role": role, "content": ""})
                found[-1]["content"] += piece.text
            elif isinstance(piece, wire.RoleStart):
                role = piece.role
                found.append({"role": role, "content": ""})
            else:
                role = ""
        return found

    def text(self) -> str:
        """All that was said, to be read by people: each message as "role: content" on its own line.

        The model's own template is not shown; text outside roles stands as it is.
        """
        return shown(self._said())

    def explain(self) -> Report:
        """One record a call of this branch and of all forked from it, and what sharing saved."""
        places = {branch.place for branch in subtree(self._branch)}
        return Report(tuple(record(slot) for slot in self._run.calls if slot.place in places))

    def __repr__(self) -> str:
        names = ", ".join(f"{n}{'' if s.done else '...'}" for n, s in self._branch.slots.items())
        return f"<State{self._branch.place.label()} [{names}]>"

    def _said(self) -> list[wire.Text | wire.RoleStart | wire.RoleEnd]:
        last = self._branch.last
        if last is not None:
            self._settle(last, "text")
        return self._branch.said

    def _find(self, name: str) -> Slot:
        slot = self._branch.slots.get(name)
        if slot is None:
            raise unbound(name, self._branch.slots, where())
        return slot

    def _wait(self, name: str) -> Slot:
        return self._settle(self._find(name), name)

    def _settle(self, slot: Slot, name: str) -> Slot:
        if not slot.done:
            if not bridge.inside():
                raise ProgramError(
                    "this value is not ready; an async def body must write "
                    f"await s.get({name!r}) before it reads it",
                    where(),
                    name,
                )
            bridge.wait(slot.waiter())
        return self._good(slot)

    def _good(self, slot: Slot) -> Slot:
        if slot.error is not None:
            raise self._run.tell(slot.error)
        return slot


class _RoleScope:
    """What `s.user(...)` returns: a context manager, unless parts made it a whole message."""

    def __init__(self, state: State, role: str, parts: tuple[str | Expr, ...]) -> None:
        self._state = state
        self._role = role
        self._whole = bool(parts)
        if parts:
            content = Expr(tuple(node for part in parts for node in dsl.nodes_of(part)))
            state.append(dsl.role(role, content))

    def __enter__(self) -> None:
        if self._whole:
            raise ProgramError(
                "the message is complete already; use `with` without arguments", where(), self._role
            )
        self._state.begin(self._role)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._state.end()
