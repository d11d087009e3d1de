"""What a program appends to its state: text, `gen`, `select` and roles, joined with `+`.

Expressions are frozen values; making one asks no model anything. Arguments are checked here, so a
mistake is raised on its own line. Knows `ir`, `sampling` and the error tree; used by programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from . import ir
from .errors import InvalidRequest, ProgramError, Unsupported
from .place import where
from .request import METHODS
from .sampling import Sampling


class Expr(msgspec.Struct, frozen=True):
    """A sequence of nodes. `+` joins it with text or another expression, on either side."""

    nodes: tuple[ir.Node, ...]

    def __add__(self, other: str | Expr) -> Expr:
        return Expr(self.nodes + nodes_of(other))

    def __radd__(self, other: str | Expr) -> Expr:
        return Expr(nodes_of(other) + self.nodes)

    def __format__(self, spec: str) -> str:
        raise ProgramError(
            "an expression has no text yet, so it cannot stand in an f-string; join it with +",
            where(),
        )


def nodes_of(value: str | Expr) -> tuple[ir.Node, ...]:
    """The nodes of text (none for "") or of an expression; anything else is a `ProgramError`."""
    if isinstance(value, str):
        return (ir.Text(value, where()),) if value else ()
    if isinstance(value, Expr):
        return value.nodes
    raise ProgramError(
        f"expected text or an expression, found {type(value).__name__}; write str(value) to "
        "append it as text",
        where(),
    )


def gen(  # noqa: PLR0913 - the public face names every option; inside it is one frozen node
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    n: int | None = None,
    regex: str | None = None,
    json_schema: object | None = None,
    grammar: str | None = None,
    choices: Sequence[str] | None = None,
    type: object | None = None,
    logprobs: bool = False,
    ignore_eos: bool = False,
) -> Expr:
    """The model continues the text; the value is bound to `name`.

    `max_tokens` (default 256) bounds the drawn tokens, `temperature` (default 0) flattens the
    distribution, `top_p` keeps the likeliest tokens of that mass, `stop` ends the text and is
    removed from it, `seed` makes the call repeatable (siblings still differ), `logprobs` keeps each
    token's log-probability in `meta`, `ignore_eos` draws on past the model's end token. `choices`
    makes it a `select`. Options set on the program hold where none is given here.

    Raises `Unsupported` for `top_k`, `min_p`, `n` above 1, `regex`, `json_schema`, `grammar` and
    `type`, which are not served yet, and `InvalidRequest` for values out of range or in conflict.
    """
    here = where()
    shapes = {"regex": regex, "json_schema": json_schema, "grammar": grammar, "type": type}
    given = [key for key, value in (shapes | {"choices": choices}).items() if value is not None]
    if len(given) > 1:
        raise InvalidRequest(f"[{here}] gen: {' and '.join(given)} conflict; give one of them")
    if n is not None and n < 1:
        raise InvalidRequest(f"[{here}] gen: n must be at least 1, found {n!r}")
    later = {"top_k": top_k, "min_p": min_p, **shapes, "n": None if n == 1 else n}
    for key, value in later.items():
        if value is not None:
            raise Unsupported(f"[{here}] gen: {key} is not served by this version; leave it out")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    node = ir.Gen(
        name=_name("gen", name, here),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stops,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        where=here,
    )
    if choices is not None:
        if node != ir.Gen(name=name, where=here):
            raise InvalidRequest(
                f"[{here}] gen: choices are scored, not drawn; leave out all sampling options"
            )
        return _select("gen", name, choices, "total", here)
    _checked(node)
    return Expr((node,))


def select(name: str | None, choices: Sequence[str], *, method: str = "total") -> Expr:
    """The model picks one of `choices`, scored as continuations of the text in one pass.

    `method` "total" takes the highest log-probability of the whole choice, "token_mean" the highest
    mean over its tokens; `state.scores(name)` has both. `InvalidRequest` for no choices, an empty
    or repeated one, or an unknown method.
    """
    return _select("select", name, choices, method, where())


def ref(name: str) -> Expr:
    """The text of an earlier call, put in without the program waiting for it."""
    return Expr((ir.Ref(name, where()),))


def role(name: str, content: str | Expr) -> Expr:
    """One whole message of the role `name`. Roles do not nest."""
    here = where()
    inner = nodes_of(content)
    for node in inner:
        if isinstance(node, ir.RoleStart | ir.RoleEnd):
            raise ProgramError(
                f"the role {node.role!r} cannot stand inside {name!r}; roles do not nest",
                here,
                name,
            )
    return Expr((ir.RoleStart(name, here), *inner, ir.RoleEnd(name, here)))


def system(content: str | Expr) -> Expr:
    """A system message."""
    return role("system", content)


def user(content: str | Expr) -> Expr:
    """A user message."""
    return role("user", content)


def assistant(content: str | Expr) -> Expr:
    """An assistant message, usually holding a `gen` or a `select`."""
    return role("assistant", content)


def _select(what: str, name: str | None, choices: Sequence[str], method: str, here: str) -> Expr:
    label = f"[{here}] {what}"
    if isinstance(choices, str):
        raise InvalidRequest(f"{label}: choices must be a list of strings, found one string")
    found = tuple(choices)
    if not found or not all(isinstance(choice, str) and choice for choice in found):
        raise InvalidRequest(
            f"{label}: choices must be at least one non-empty string, found {list(found)!r}"
        )
    if len(set(found)) != len(found):
        raise InvalidRequest(f"{label}: choices must differ from each other, found {list(found)!r}")
    if method not in METHODS:
        raise InvalidRequest(
            f"{label}: method must be one of {', '.join(METHODS)}, found {method!r}"
        )
    node = ir.Select(name=_name(what, name, here), choices=found, method=method, where=here)
    return Expr((node,))


def _name(what: str, name: object, here: str) -> str | None:
    if name is None or (isinstance(name, str) and name):
        return name
    raise InvalidRequest(f"[{here}] {what}: name must be a non-empty string, found {name!r}")


_NUMBERS: dict[str, type[int] | tuple[type[int], type[float]]] = {
    "max_tokens": int,
    "temperature": (int, float),
    "top_p": (int, float),
    "seed": int,
}


def checked_numbers(options: dict[str, object], label: str) -> None:
    """Raise `InvalidRequest` where a given sampling option has the wrong type or range.

    `options` may hold `max_tokens`, `temperature`, `top_p` and `seed`; None means not given.
    """
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if not isinstance(value, _NUMBERS[key]) or isinstance(value, bool):
            raise InvalidRequest(f"{label}: {key} must be a number, found {value!r}")
    try:
        msgspec.structs.replace(_PLAIN, **given)
    except InvalidRequest as error:
        raise InvalidRequest(f"{label}: {error}") from None


_PLAIN = Sampling()


def _checked(node: ir.Gen) -> None:
    label = f"[{node.where}] gen"
    numbers: dict[str, object] = {
        "max_tokens": node.max_tokens,
        "temperature": node.temperature,
        "top_p": node.top_p,
        "seed": node.seed,
    }
    checked_numbers(numbers, label)
    if not all(isinstance(stop, str) and stop for stop in node.stop):
        raise InvalidRequest(
            f"{label}: stop must be a non-empty string or several, found {node.stop!r}"
        )
