"""Branches of a fork: index them, append to all, gather what they found; and the scratch copy.

Called by programs; made by `state.fork` and `state.copy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import bridge, ir
from .errors import InvalidRequest, ProgramError
from .place import where
from .slot import Slot

if TYPE_CHECKING:
    from .dsl import Expr
    from .state import State


class Branches:
    """The branches of one fork, in order. The parent may go on while they run."""

    def __init__(self, parent: State, states: tuple[State, ...]) -> None:
        """Made by `state.fork`."""
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def __getitem__(self, index: int) -> State:
        return self._states[index]

    def __setitem__(self, index: int, value: State) -> None:
        # `b[0] += x` ends here, with the state it began with.
        if value is not self._states[index]:
            raise InvalidRequest(f"[{where()}] a branch cannot be replaced; append to it with +=")

    def __iadd__(self, other: str | Expr | Callable[[int], str | Expr]) -> Branches:
        """Append to every branch; a function is called with each branch's number."""
        for index, state in enumerate(self._states):
            state.append(other(index) if callable(other) else other)
        return self

    def cancel(self) -> None:
        """Cancel every branch."""
        for state in self._states:
            state.cancel()

    def join(self) -> dict[str, list[Any]]:
        """Wait for all branches; their new names become lists, in branch order.

        The lists are bound in the parent and returned. A name is gathered if any branch bound it
        since the fork or the last join; a branch that has none, or was cancelled, gives None. The
        branches stay usable, and a later join gathers again. A branch's failed call is raised here.
        """
        here = where()
        for slot in self._awaited():
            if not bridge.inside():
                raise ProgramError(
                    "the branches are not done; an async def body must write await b.ajoin()",
                    here,
                    "join",
                )
            bridge.wait(slot.waiter())
        return self._gather(here)

    async def ajoin(self) -> dict[str, list[Any]]:
        """As `join`, awaited: for `async def` bodies."""
        here = where()
        for slot in self._awaited():
            await slot.waiter()
        return self._gather(here)

    def _awaited(self) -> Iterator[Slot]:
        """The newest call of each branch. Calls end in order: when it is done, all are."""
        for state in self._states:
            branch = state._branch
            if not branch.cancelled and branch.last is not None and not branch.last.done:
                yield branch.last

    def _gather(self, here: str) -> dict[str, list[Any]]:
        run = self._parent._run
        live = [s._branch for s in self._states if not s._branch.cancelled]
        errors = [branch.error for branch in live if branch.error is not None]
        if errors:
            for error in errors:
                run.tell(error)
            for other in errors[1:]:
                if other is not errors[0]:
                    errors[0].add_note(f"also failed: {other}")
            raise errors[0]
        names = {name: None for branch in live for name in branch.fresh}
        found: dict[str, list[Any]] = {name: [] for name in names}
        for state in self._states:
            branch = state._branch
            for name, values in found.items():
                slot = None if branch.cancelled else branch.own.get(name)
                values.append(None if slot is None else slot.value)
            branch.fresh.clear()
        run.append(self._parent._branch, (ir.Join(tuple(found), here),))
        for name, values in found.items():
            run.bind(self._parent._branch, name, values, here)
        return found


class Scratch:
    """What `state.copy` returns: a context manager that gives the scratch branch."""

    def __init__(self, state: State) -> None:
        """Made by `state.copy`."""
        self._state = state

    def __enter__(self) -> State:
        return self._state

    def __iadd__(self, other: object) -> Scratch:
        raise InvalidRequest(f"[{where()}] open the copy first: with s.copy() as t: t += ...")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._state.cancel()
