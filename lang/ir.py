"""The instructions of a program: frozen nodes that serialise.

Made by `dsl` (expressions) and `run` (fork, join), executed by `run`, one method a node. Each knows
the program line it stands on (`where`, "file.py:12"). Knows no client and no state. gc=False:
strings, numbers and tuples of them form no cycles, and a batch keeps many.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Plain text joins the prompt."""

    text: str
    where: str = ""


class RoleStart(msgspec.Struct, frozen=True, gc=False, tag="role_start"):
    """A message of `role` opens."""

    role: str
    where: str = ""


class RoleEnd(msgspec.Struct, frozen=True, gc=False, tag="role_end"):
    """The open message of `role` ends."""

    role: str
    where: str = ""


class Gen(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag="gen"):
    """The model continues the prompt. None means: as the program's defaults say."""

    name: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    timeout: float | None = None
    where: str = ""


class Select(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag="select"):
    """The model picks the likeliest of `choices` by `method` (a name in `request.METHODS`).

    `values[i]` is what choice i stands for; without any, its text. A member of an enum does not
    survive serialising: its value comes back, or its name.
    """

    name: str | None = None
    choices: tuple[str, ...]
    method: str = "total"
    values: tuple[Any, ...] = ()
    timeout: float | None = None
    where: str = ""


class Ref(msgspec.Struct, frozen=True, gc=False, tag="ref"):
    """The text of an earlier call joins the prompt, without the program waiting for it."""

    name: str
    where: str = ""


class Fork(msgspec.Struct, frozen=True, gc=False, tag="fork"):
    """`n` branches start here; `scratch` marks a copy whose text nobody will gather."""

    n: int
    scratch: bool = False
    where: str = ""


class Join(msgspec.Struct, frozen=True, gc=False, tag="join"):
    """Lists of what the branches of an earlier fork found are bound to `names`."""

    names: tuple[str, ...]
    where: str = ""


class SpanStart(msgspec.Struct, frozen=True, gc=False, tag="span_start"):
    """What is said from here on will be a value."""

    name: str
    where: str = ""


class SpanEnd(msgspec.Struct, frozen=True, gc=False, tag="span_end"):
    """`name` is bound to what was said since the span's start."""

    name: str
    where: str = ""


Node = Text | RoleStart | RoleEnd | Gen | Select | Ref | Fork | Join | SpanStart | SpanEnd
Call = Gen | Select

_ENCODER = msgspec.msgpack.Encoder(enc_hook=lambda member: member.name)
_DECODER = msgspec.msgpack.Decoder(tuple[Node, ...])


def encode(nodes: tuple[Node, ...]) -> bytes:
    """Nodes as msgpack."""
    return _ENCODER.encode(nodes)


def decode(data: bytes) -> tuple[Node, ...]:
    """Nodes from msgpack; `msgspec.ValidationError` where the bytes hold no program."""
    return _DECODER.decode(data)
