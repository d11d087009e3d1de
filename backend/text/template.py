"""Renders a chat template, which is a program from a model file, in a sandbox and within bounds.

The environment offers what transformers offers to templates, so that they render alike:
https://huggingface.co/docs/transformers/chat_templating_writing. Knows messages, no tokens and no
pieces. Called by `chat.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from ...lang.errors import TemplateError

MAX_SECONDS = 5.0
MAX_MARKUP = 1_000_000  # characters a template may add to its messages' own


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


class Template:
    """One compiled template. Rendering is thread-safe."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        """`names`: texts a template may mention (`bos_token`, ...). Raises TemplateError."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template is broken (line {error.lineno}: {error.message}); "
                "write the prompt as plain text, without roles"
            ) from error
        self._names = dict(names)

    def render(self, messages: Sequence[Message], open_assistant: bool, today: date) -> str:
        """The whole conversation as text; `open_assistant` opens an answer at its end.

        `strftime_now` sees midnight of `today`: a clock that moves would change the prompt's
        prefix under the cache. Raises TemplateError where the template refuses or runs wild.
        """
        now = datetime.combine(today, datetime.min.time())
        dicts = [{"role": m.role, "content": m.content} for m in messages]
        allowed = MAX_MARKUP + 2 * sum(len(m.content) for m in messages)
        try:
            chunks = self._template.generate(
                **self._names,
                messages=dicts,
                add_generation_prompt=open_assistant,
                tools=None,
                documents=None,
                strftime_now=_clock(now),
            )
            return _join(chunks, allowed)
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(_refusal(messages, str(error))) from error
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise TemplateError(_refusal(messages, why)) from error


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Refuses products that would fill the memory in one step."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        """Multiply or raise to a power within bounds."""
        if _is_huge(operator, left, right):
            raise jinja2.exceptions.SecurityError(f"{operator!r} would make too large a value")
        return super().call_binop(context, operator, left, right)


def _is_huge(operator: str, left: object, right: object) -> bool:
    if operator == "**":
        return not (isinstance(right, (int, float)) and abs(right) <= 64)
    return any(
        isinstance(a, (str, list, tuple)) and isinstance(b, int) and len(a) * b > MAX_MARKUP
        for a, b in ((left, right), (right, left))
    )


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks answers for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it a plain set)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Its body, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _join(chunks: Iterator[str], allowed: int) -> str:
    parts: list[str] = []
    size, deadline = 0, time.perf_counter() + MAX_SECONDS
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > allowed or time.perf_counter() > deadline:
            raise TemplateError(
                f"the model's chat template wrote more than {allowed} characters or took more than "
                f"{MAX_SECONDS:g} seconds; write the prompt as plain text, without roles"
            )
    return "".join(parts)


def _refusal(messages: Sequence[Message], why: str) -> str:
    roles = ", ".join(message.role for message in messages) or "none"
    return (
        f"the model's chat template refuses the roles ({roles}): {why}; change their order, "
        "or write the prompt as plain text, without roles"
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _clock(now: datetime) -> Callable[[str], str]:
    return now.strftime


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
