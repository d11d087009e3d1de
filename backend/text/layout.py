"""A request's segments as token ids: what is settled stays, what is new is tokenised in one go.

Markup comes from the chat format in pieces, so settled `Tokens` are passed through as they are and
only what stands between and after them is tokenised, each stretch as one string. Where a template
has no stable pieces, everything is rendered and tokenised anew from the sources. Knows no jobs and
no sampling. Called by the front end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...lang.errors import InvalidRequest, TemplateError
from ...lang.request import RoleEnd, RoleStart, Segment, Text, Tokens
from .chat import ChatFormat, Turn
from .template import Message
from .tokenizer import Run, Tokenizer

Source = Text | RoleStart | RoleEnd
OUTSIDE = Turn("", "", "", False, False)


_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt in two parts: `settled` ids, then `runs` of text still to be tokenised.

    `at_start`: no id stands before the runs, so the start token belongs there. `glue` is markup for
    a text that comes next (`Turn.glue`). `source`: everything, in order. `end`: the markup that
    will close the open message, "" outside messages.
    """

    settled: tuple[int, ...]
    runs: tuple[Run, ...]
    at_start: bool
    glue: str
    source: tuple[Source, ...]
    end: str

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The prompt's ids."""
        return [*self.settled, *self.open_ids(tokenizer, [Run("", False)])[0]]

    def open_ids(self, tokenizer: Tokenizer, endings: Sequence[Run]) -> list[list[int]]:
        """Ids of what is not settled, the start token included, joined with each ending in turn."""
        after = self.settled[-1] if self.settled else None
        each = tokenizer.encode_each(self.runs, endings, after)
        return [tokenizer.with_start(ids) for ids in each] if self.at_start else each


def lay_out(segments: Sequence[Segment], tokenizer: Tokenizer, chat: ChatFormat) -> Layout:
    """Lay out a request's prompt.

    Raises InvalidRequest where roles are nested or closed wrongly or an id is no token of this
    model, TemplateError where the chat template refuses the roles.
    """
    source = tuple(
        item for segment in segments for item in _sources(segment, tokenizer) if item != Text("")
    )
    roles, is_open = _roles(source)
    turns = chat.turns(roles) if roles else ()
    if turns is None:
        return Layout((), tuple(_whole(source, is_open, chat)), True, "", source, "")
    walk = _Walk(tokenizer, turns)
    for segment in segments:
        if isinstance(segment, Tokens):
            walk.settle(segment.ids, _sources(segment, tokenizer))
        else:
            walk.add(segment)
    return walk.layout(source)


def _sources(segment: Segment, tokenizer: Tokenizer) -> Sequence[Source]:
    """What a segment was made from. Ids without a source are read as text."""
    if not isinstance(segment, Tokens):
        return (segment,)
    if segment.source or not segment.ids:
        return segment.source
    for token_id in segment.ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidRequest(
                f"token ids must be from 0 to {tokenizer.vocab_size - 1} for this model, "
                f"found {token_id}; were they made by another model's tokenizer?"
            )
    return (Text(tokenizer.decode(segment.ids, skip_special=False)),)


def _roles(source: Sequence[Source]) -> tuple[tuple[str, ...], bool]:
    """The roles in order and whether the last is still open; refuses unbalanced ones."""
    roles: list[str] = []
    is_open = False
    for item in source:
        if isinstance(item, RoleStart):
            if is_open:
                raise InvalidRequest(
                    f"a {item.role!r} message opens inside the {roles[-1]!r} message; roles cannot "
                    "be nested, end the open one first"
                )
            if not _ROLE.fullmatch(item.role):  # it goes into the template's trusted markup
                raise InvalidRequest(
                    "a role must be a plain name (letters, digits, '_', '-', '.'), found "
                    f"{item.role!r}"
                )
            roles.append(item.role)
            is_open = True
        elif isinstance(item, RoleEnd):
            if not is_open or roles[-1] != item.role:
                found = f"the open message is {roles[-1]!r}" if is_open else "no message is open"
                raise InvalidRequest(f"a {item.role!r} message ends here, but {found}")
            is_open = False
    return tuple(roles), is_open


class _Walk:
    """Walks the segments in order, collecting ids and runs."""

    def __init__(self, tokenizer: Tokenizer, turns: Sequence[Turn]) -> None:
        self._tokenizer = tokenizer
        self._turns = iter(turns)
        self._turn = OUTSIDE  # of the open message
        self._inside = False
        self._has_content = False
        self._ids: list[int] = []
        self._runs: list[Run] = []
        self._texts: list[str] = []  # of the open message, not yet in the runs

    def add(self, item: Source) -> None:
        """Take a segment that still has to be tokenised."""
        match item:
            case Text(text) if self._inside:
                self._texts.append(text)
            case Text(text):
                self._runs.append(Run(text, False))
            case RoleStart():
                self._enter()
                self._runs.append(Run(self._turn.start, True))
            case RoleEnd():
                self._write(ends=True)
                glue = "" if self._has_content else self._turn.glue
                self._runs.append(Run(glue + self._turn.end, True))
                self._leave()

    def settle(self, ids: Sequence[int], source: Sequence[Source]) -> None:
        """Take settled ids; their source moves through the roles but is not tokenised."""
        if ids:
            self._write(ends=False)
            self._flush()
            self._ids.extend(ids)
        for item in source:
            match item:
                case Text(text):
                    self._has_content = self._has_content or bool(text and ids)
                case RoleStart():
                    self._enter()
                case RoleEnd():
                    self._leave()

    def layout(self, source: tuple[Source, ...]) -> Layout:
        """The result, once all segments are taken."""
        self._write(ends=False)
        return Layout(
            settled=tuple(self._ids),
            runs=tuple(self._runs),
            at_start=not self._ids,
            glue="" if self._has_content else self._turn.glue,
            source=source,
            end=self._turn.end,
        )

    def _enter(self) -> None:
        self._turn, self._inside, self._has_content = next(self._turns), True, False

    def _leave(self) -> None:
        self._turn, self._inside = OUTSIDE, False

    def _write(self, ends: bool) -> None:
        """Move the open message's text to the runs, trimmed as its template would."""
        text = "".join(self._texts)
        self._texts.clear()
        if self._turn.trims_lead and not self._has_content:
            text = text.lstrip()
        if self._turn.trims_trail and ends:
            text = text.rstrip()
        if text:
            glue = "" if self._has_content else self._turn.glue
            self._runs += (Run(glue, True), Run(text, False))
            self._has_content = True

    def _flush(self) -> None:
        """Tokenise what stands before settled ids."""
        if not any(run.text for run in self._runs):
            self._runs.clear()
            return
        ids = self._tokenizer.encode(self._runs, self._ids[-1] if self._ids else None)
        self._ids.extend(ids if self._ids else self._tokenizer.with_start(ids))
        self._runs.clear()


def _whole(source: Sequence[Source], is_open: bool, chat: ChatFormat) -> list[Run]:
    """Everything rendered at once; text outside messages may stand in front or at the end."""
    messages: list[Message] = []
    before, after, inside = "", "", False
    for item in source:
        match item:
            case RoleStart(role):
                if after:
                    raise TemplateError(
                        "this model's chat template is rendered as a whole and takes no text "
                        f"between messages, found {after[:40]!r}; put it into a message"
                    )
                messages.append(Message(role, ""))
                inside = True
            case RoleEnd():
                inside = False
            case Text(text) if inside:
                messages[-1] = Message(messages[-1].role, messages[-1].content + text)
            case Text(text) if messages:
                after += text
            case Text(text):
                before += text
    return [Run(before, False), *chat.whole(messages, is_open), Run(after, False)]
