"""What a program appends to its state: text, `gen`, `select` and roles, joined with `+`.

Expressions are frozen values; making one asks no model anything. Arguments are checked here, so a
mistake is raised on its own line. Knows `ir`, `sampling` and the error tree; used by programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from . import ir, options
from .errors import InvalidRequest, ProgramError
from .place import where


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
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    logit_bias: Mapping[int | str, float] | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: int | Sequence[int] = (),
    min_tokens: int = 0,
    seed: int | None = None,
    n: int | None = None,
    regex: str | None = None,
    json_schema: object | None = None,
    grammar: str | None = None,
    choices: Sequence[str] | None = None,
    type: object | None = None,
    logprobs: bool = False,
    top_logprobs: int = 0,
    ignore_eos: bool = False,
    timeout: float | None = None,
) -> Expr:
    """The model continues the text; the value is bound to `name`.

    How tokens are drawn: `max_tokens` (default 256) bounds them, `temperature` (default 0) flattens
    the distribution, `top_k`, `top_p` and `min_p` keep the likeliest tokens; the penalties and
    `logit_bias` (token id to amount) move logits first. `seed` makes the call repeatable (siblings
    still differ). What ends the text: `stop` strings and `stop_token_ids`, which are removed from
    it, and the model's own end token unless `ignore_eos`; none of them before `min_tokens`.
    `logprobs` and `top_logprobs` keep log-probabilities in `meta`. `sampling.Sampling` says each of
    these in full. With `n` above 1 so many samples are drawn from one prompt: the value is a list,
    and the text goes on after the first. `timeout` is the longest the call may take, in seconds.
    `choices` makes it a `select`, and so does `type`: bool, a Literal or an Enum, whose members are
    the choices and the value. Options set on the program hold where none is given here.

    Raises `Unsupported` for `regex`, `json_schema`, `grammar` and any other `type`, which are not
    served yet, and `InvalidRequest` for values out of range or in conflict.
    """
    here = where()
    label = f"[{here}] gen"
    shapes = {"regex": regex, "json_schema": json_schema, "grammar": grammar}
    few = options.few_values(shapes | {"type": type, "choices": choices}, label)
    node = ir.Gen(
        name=name,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=options.checked_bias(logit_bias, label),
        seed=seed,
        n=options.checked_n(n, label),
        stop=options.stops(stop, label),
        stop_token_ids=options.checked_ids(stop_token_ids, label),
        ignore_eos=options.flag("ignore_eos", ignore_eos, label),
        logprobs=options.flag("logprobs", logprobs, label),
        top_logprobs=top_logprobs,
        timeout=timeout,
        where=here,
    )
    return Expr((options.checked_gen(node) if few is None else options.scored(node, few),))


def select(
    name: str | None,
    choices: Sequence[str],
    *,
    method: str = "total",
    timeout: float | None = None,
) -> Expr:
    """The model picks one of `choices`, scored as continuations of the text in one pass.

    `method` says by what: "total", the log-probability of the whole choice; "token_mean" and
    "byte_mean", the same by length; "greedy_token", what greedy decoding over the choices would
    write; "unconditional", how much likelier the prompt makes the choice than no prompt at all,
    which takes a second pass. `state.scores(name)` has them all. `timeout`: the longest the call
    may take, in seconds. `InvalidRequest` for no choices, an empty or repeated one, or an unknown
    method.
    """
    here = where()
    texts = options.listed(choices, f"[{here}] select")
    node = ir.Select(name=name, choices=texts, method=method, timeout=timeout, where=here)
    return Expr((options.checked_select(node, "select"),))


def ref(name: str) -> Expr:
    """The text of an earlier call, put in without the program waiting for it."""
    here = where()
    if not isinstance(name, str):
        raise InvalidRequest(f"[{here}] ref: name must be a string, found {name!r}")
    return Expr((ir.Ref(name, here),))


def role(name: str, content: str | Expr) -> Expr:
    """One whole message of the role `name`. Roles do not nest."""
    here = where()
    if not isinstance(name, str):
        raise InvalidRequest(f"[{here}] role: name must be a string, found {name!r}")
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


def system_begin() -> Expr:
    """Opens a system message, to be closed by `system_end`; `with s.system():` cannot forget it."""
    return Expr((ir.RoleStart("system", where()),))


def system_end() -> Expr:
    """Closes a system message."""
    return Expr((ir.RoleEnd("system", where()),))


def user_begin() -> Expr:
    """Opens a user message; see `system_begin`."""
    return Expr((ir.RoleStart("user", where()),))


def user_end() -> Expr:
    """Closes a user message."""
    return Expr((ir.RoleEnd("user", where()),))


def assistant_begin() -> Expr:
    """Opens an assistant message; see `system_begin`."""
    return Expr((ir.RoleStart("assistant", where()),))


def assistant_end() -> Expr:
    """Closes an assistant message."""
    return Expr((ir.RoleEnd("assistant", where()),))


def assistant(content: str | Expr) -> Expr:
    """An assistant message, usually holding a `gen` or a `select`."""
    return role("assistant", content)
