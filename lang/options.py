"""What the options of `gen`, `select` and a program's settings may be; what is refused, and why.

Every message names the program line. Pure functions; called by `dsl` and `settings`.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping, Sequence

import msgspec

from . import ir
from .choose import check_method
from .errors import InvalidRequest, Unsupported
from .sampling import Sampling, bias_of

_REAL = (int, float)
_NUMBERS: dict[str, type[int] | tuple[type[int], type[float]]] = {
    "max_tokens": int,
    "temperature": _REAL,
    "top_k": int,
    "top_p": _REAL,
    "min_p": _REAL,
    "repetition_penalty": _REAL,
    "frequency_penalty": _REAL,
    "presence_penalty": _REAL,
    "seed": int,
    "min_tokens": int,
    "top_logprobs": int,
}
SHARED = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
"""Options that a program may set for all its calls (and the seed, which each call derives)."""
MOST_SAMPLES = 128
_PLAIN = Sampling(max_tokens=2**31)  # min_tokens is held against the length once that is known


class Options(typing.NamedTuple):
    """Choices and what each stands for; `values` is empty where that is its text."""

    texts: tuple[str, ...]
    values: tuple[typing.Any, ...] = ()


def checked_numbers(options: dict[str, object], label: str) -> None:
    """Raise `InvalidRequest` where a given sampling option has the wrong type or range.

    `options` may hold those of `_NUMBERS`; None means not given.
    """
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if not isinstance(value, _NUMBERS[key]) or isinstance(value, bool):
            raise InvalidRequest(f"{label}: {key} must be a number, found {value!r}")
    try:
        msgspec.structs.replace(_PLAIN, **given)
    except OverflowError:
        raise InvalidRequest(f"{label}: numbers must fit a float, found {given!r}") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"{label}: {error}") from None


def checked_seconds(timeout: object, label: str) -> None:
    """Raise `InvalidRequest` unless `timeout` is a number of seconds above 0."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not timeout > 0:  # type: ignore[operator]
        raise InvalidRequest(f"{label}: timeout must be above 0 seconds, found {timeout!r}")


def checked_gen(node: ir.Gen) -> ir.Gen:
    """The node, if a model can be asked it."""
    label = f"[{node.where}] gen"
    _checked_call(node, label)
    checked_numbers({name: getattr(node, name) for name in _NUMBERS}, label)
    if not all(isinstance(stop, str) and stop for stop in node.stop):
        raise InvalidRequest(
            f"{label}: stop must be a non-empty string or several, found {node.stop!r}"
        )
    return node


def checked_ids(ids: int | Sequence[int], label: str) -> tuple[int, ...]:
    """Token ids that end the text; one alone needs no list."""
    found = (ids,) if isinstance(ids, int) else tuple(ids)
    for token in found:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise InvalidRequest(f"{label}: stop_token_ids must be token ids, found {token!r}")
    return found


def checked_bias(
    amounts: Mapping[int | str, float] | None, label: str
) -> tuple[tuple[int, float], ...]:
    """What is added to which token's logit."""
    if amounts is not None and not isinstance(amounts, Mapping):
        raise InvalidRequest(f"{label}: logit_bias must be a mapping, found {amounts!r}")
    try:
        bias = bias_of(amounts or {})
        msgspec.structs.replace(_PLAIN, logit_bias=bias)
    except InvalidRequest as error:
        raise InvalidRequest(f"{label}: {error}") from None
    return bias


def checked_n(n: int | None, label: str) -> int:
    """How many samples; one where nothing is said."""
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST_SAMPLES:
        raise InvalidRequest(f"{label}: n must be from 1 to {MOST_SAMPLES}, found {n!r}")
    return n


def few_values(shapes: dict[str, typing.Any], label: str) -> Options | None:
    """The choices where one of `shapes` has few values, None where none was given.

    `shapes` has "type", "choices" and what only a grammar could keep; None means not given.
    """
    given = [key for key, value in shapes.items() if value is not None]
    if len(given) > 1:
        raise InvalidRequest(f"{label}: {' and '.join(given)} conflict; give one of them")
    if shapes["choices"] is not None:
        return Options(listed(shapes["choices"], label))
    few = members(shapes["type"])
    if few is None and given:
        raise needs_grammars(given[0], shapes["type"], label)
    return few


def scored(node: ir.Gen, few: Options) -> ir.Select:
    """The select that a `gen` of few values is; it may have no options of drawing."""
    if node != ir.Gen(name=node.name, timeout=node.timeout, where=node.where):
        raise InvalidRequest(
            f"[{node.where}] gen: choices are scored, not drawn; leave out all sampling options"
        )
    select = ir.Select(
        name=node.name,
        choices=few.texts,
        values=few.values,
        timeout=node.timeout,
        where=node.where,
    )
    return checked_select(select, "gen")


def checked_select(node: ir.Select, what: str) -> ir.Select:
    """The node, if a model can be asked it; `what` is the name of the function the user called."""
    label = f"[{node.where}] {what}"
    _checked_call(node, label)
    found = node.choices
    if not found or not all(isinstance(choice, str) and choice for choice in found):
        raise InvalidRequest(
            f"{label}: choices must be at least one non-empty string, found {list(found)!r}"
        )
    if len(set(found)) != len(found):
        raise InvalidRequest(f"{label}: choices must differ from each other, found {list(found)!r}")
    try:
        check_method(node.method)
    except InvalidRequest as error:
        raise InvalidRequest(f"{label}: {error}") from None
    return node


def listed(choices: Sequence[str], label: str) -> tuple[str, ...]:
    """The choices as a tuple; one string is not a list of strings."""
    if isinstance(choices, str):
        raise InvalidRequest(f"{label}: choices must be a list of strings, found one string")
    return _tuple(choices, "choices must be a list of strings", label)


def stops(stop: str | Sequence[str] | None, label: str) -> tuple[str, ...]:
    """Stop strings as a tuple; one alone needs no list."""
    if stop is None or isinstance(stop, str):
        return () if stop is None else (stop,)
    return _tuple(stop, "stop must be a string or a list of strings", label)


def flag(name: str, value: object, label: str) -> bool:
    """A switch; text and numbers are no switches."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{label}: {name} must be True or False, found {value!r}")
    return value


def _tuple(values: Sequence[str], expected: str, label: str) -> tuple[str, ...]:
    try:
        return tuple(values)
    except TypeError:
        raise InvalidRequest(f"{label}: {expected}, found {values!r}") from None


def members(kind: object) -> Options | None:
    """The choices of a type with few values: bool, a Literal, an Enum; None for any other.

    A member of an enum reads as its value if that is a string, else as its name.
    """
    if kind is bool:
        return Options(("True", "False"), (True, False))
    if typing.get_origin(kind) is typing.Literal:
        values = typing.get_args(kind)
    elif isinstance(kind, enum.EnumMeta):
        values = tuple(kind)
    else:
        return None
    return Options(tuple(map(_text_of, values)), values)


def needs_grammars(option: str, kind: object, label: str) -> Unsupported:
    """The refusal of an option that only a grammar could keep."""
    shown = option
    if option == "type":
        shown = f"type={kind.__name__ if isinstance(kind, type) else repr(kind)}"
    return Unsupported(
        f"{label}: {shown} needs grammars, which this version does not serve; draw plain text and "
        "convert it, or give choices"
    )


def _text_of(value: object) -> str:
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name
    return value if isinstance(value, str) else str(value)


def _checked_call(node: ir.Call, label: str) -> None:
    if node.name is not None and not (isinstance(node.name, str) and node.name):
        raise InvalidRequest(f"{label}: name must be a non-empty string, found {node.name!r}")
    if node.timeout is not None:
        checked_seconds(node.timeout, label)
