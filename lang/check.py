"""Rules a sequence of nodes must keep, checked where it is appended, before any call is made.

Roles do not nest and close what is open; a reference names something bound before it. Whether forks
are joined is no rule: an unjoined branch is run to its end. Called by `run` and `dsl`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from . import ir
from .errors import ProgramError


def role_after(role: str | None, node: ir.Node) -> str | None:
    """The role open after `node` when `role` was open before it."""
    if isinstance(node, ir.RoleStart):
        if role is not None:
            raise ProgramError(
                f"cannot open the role {node.role!r} while {role!r} is open; roles do not nest, "
                f"close {role!r} first",
                node.where,
                node.role,
            )
        return node.role
    if isinstance(node, ir.RoleEnd):
        if role != node.role:
            raise ProgramError(
                f"cannot close the role {node.role!r}: "
                + (f"{role!r} is open" if role else "no role is open"),
                node.where,
                node.role,
            )
        return None
    return role


def check(
    nodes: Iterable[ir.Node], names: Container[str] = (), role: str | None = None
) -> str | None:
    """The role open after the nodes; `ProgramError` for the first node that breaks a rule.

    `names` are bound already, `role` is open before.
    """
    bound: set[str] = set()
    for node in nodes:
        role = role_after(role, node)
        if isinstance(node, ir.Ref) and node.name not in bound and node.name not in names:
            raise unbound(node.name, sorted(bound), node.where)
        if isinstance(node, ir.Gen | ir.Select | ir.SpanEnd) and node.name is not None:
            bound.add(node.name)
        if isinstance(node, ir.Join):
            bound.update(node.names)
    return role


def unbound(name: str, known: Iterable[str], where: str) -> ProgramError:
    """The error for a name nothing has been bound to so far."""
    names = ", ".join(repr(each) for each in known) or "none"
    return ProgramError(
        f"nothing is called {name!r} at this point; names bound so far: {names}", where, name
    )
