"""Roles into stable pieces of markup, taken from the model's own chat template.

A template renders whole conversations; a branching program needs pieces that never change once
they are written, or no prefix is ever shared. So each sequence of roles is rendered with marks in
place of the contents and cut at the marks:

    <|im_start|>user\\n  MARK 0  <|im_end|>\\n<|im_start|>assistant\\n  MARK 1  <|im_end|>\\n
    ---- start 0 -----         - end 0 --------- start 1 ----------         --- end 1 ---

and every longer sequence must begin with the shorter one's rendering. A template that rewrites
what it wrote (or contents, beyond trimming their white space) has no pieces; it is rendered whole
and what could be shared is lost. Knows no requests and no token ids. Called by the front end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

from ...lang.errors import TemplateError
from .lru import Lru
from .template import Message, Template
from .tokenizer import Run, Tokenizer

log = logging.getLogger("branchwork.chat")

ASSISTANT = "assistant"
# White space at both ends of a content shows what a template trims.
LEAD, TRAIL = "\n ", " \n"
# Sequences longer than this are tried with the turns of like neighbours before every prefix of
# them is rendered (which costs three renderings a message, each of the whole conversation).
SLOW_TURNS = 6
# Code points that stand for control tokens while a conversation is rendered whole.
PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True, slots=True)
class Turn:
    """Markup around one message's content.

    `glue` stands between `start` and the content unless the model draws the content from its first
    token on: white space that a model writes by itself after the opening (Llama 2's space). The
    content's leading white space is dropped if `trims_lead`, the trailing if `trims_trail`.
    """

    start: str
    glue: str
    end: str
    trims_lead: bool
    trims_trail: bool


Turns = tuple[Turn, ...]


class ChatFormat:
    """One template's pieces, remembered per sequence of roles. Thread-safe."""

    def __init__(
        self,
        source: str | None,
        names: Mapping[str, str],
        special_texts: Collection[str] = (),
        today: Callable[[], date] = date.today,
    ) -> None:
        """`source`: Jinja, None if the model has no template. `special_texts`: control tokens."""
        self._source = source
        self._names = names
        self._specials = sorted(special_texts, key=len, reverse=True)
        self._today = today
        self._lock = threading.RLock()
        self._template: Template | None = None
        self._renderings: Lru[tuple[tuple[str, ...], str, date], str | None] = Lru(64)
        self._turns: Lru[tuple[tuple[str, ...], date], Turns | None] = Lru(256)
        self.lost_reuse: str | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatFormat:
        """The chat format of a tokenizer's template."""
        return cls(tokenizer.chat_template, tokenizer.facts.names, tokenizer.special_texts)

    def turns(self, roles: tuple[str, ...]) -> Turns | None:
        """One turn a role, or None where this template must be rendered whole (`whole`).

        Raises TemplateError where the model has no template or the template refuses the roles.
        """
        with self._lock:
            key = roles, self._today()
            if key not in self._turns:
                self._turns[key] = self._find(*key)
            return self._turns[key]

    def whole(self, messages: Sequence[Message], is_open: bool) -> list[Run]:
        """The conversation rendered at once; with `is_open` its last message has not ended.

        Control tokens that stand in contents come out as untrusted runs. Raises TemplateError.
        """
        masked, shown = _mask(messages, self._specials)
        with self._lock:
            self._report_lost_reuse()
            text = self._open(masked) if is_open else self._compiled().render(*self._plain(masked))
        return list(_unmask(text, shown))

    def _open(self, messages: Sequence[Message]) -> str:
        *before, last = messages
        if last.role == ASSISTANT and before:
            return self._compiled().render(before, True, self._today()) + last.content
        mark = _mark(len(before))
        closed = self._compiled().render(
            *self._plain([*before, Message(last.role, last.content + mark)])
        )
        if closed.count(mark) != 1:
            raise TemplateError(
                f"the model's chat template cannot leave the last message ({last.role}) open; "
                "end it before the call"
            )
        return closed[: closed.index(mark)]

    def _plain(self, messages: Sequence[Message]) -> tuple[Sequence[Message], bool, date]:
        return messages, False, self._today()

    def _report_lost_reuse(self) -> None:
        if self.lost_reuse is None:
            self.lost_reuse = (
                "this model's chat template rewrites earlier messages: conversations are rendered "
                "and tokenised anew for every call and share less of the KV cache"
            )
            log.warning(self.lost_reuse)

    def _find(self, roles: tuple[str, ...], day: date) -> Turns | None:
        """Extend the longest known prefix role by role; where the roles are many, try a guess."""
        turns, n, guessed = self._longest(roles, day)
        while turns is not None and n < len(roles):
            if not guessed and n >= SLOW_TURNS and len(roles) - n > 2:
                guessed = True
                guess = self._guess(turns, roles, day)
                if guess is not None:
                    return guess
            n += 1
            turns = self._extend(turns, roles[:n], day)
        if turns is None or len(turns) == len(roles):
            return turns
        ahead = self._ahead(turns, roles, day)
        if ahead is None and self._render(roles, "plain", day) is None:
            self._compiled().render(_messages(roles, "plain"), False, day)  # raises its refusal
        return ahead

    def _longest(self, roles: tuple[str, ...], day: date) -> tuple[Turns | None, int, bool]:
        for n in range(len(roles) - 1, 0, -1):
            key = roles[:n], day
            if key in self._turns:
                return self._turns[key], n, False
        return (), 0, False

    def _guess(self, turns: Turns, roles: tuple[str, ...], day: date) -> Turns | None:
        """Turns between the same roles are taken to be alike; two whole renderings must agree."""
        if not turns:
            return None
        known = dict(zip(pairwise(roles), turns[1:], strict=False))
        more = [known.get(pair) for pair in pairwise(roles[len(turns) - 1 :])]
        if None in more:
            return None
        guess = (*turns, *(turn for turn in more if turn is not None))
        return guess if self._agrees(guess, roles, day) else None

    def _agrees(self, turns: Turns, roles: tuple[str, ...], day: date) -> bool:
        return all(
            self._render(roles, form, day) == _compose(turns, form) for form in ("plain", "padded")
        )

    def _ahead(self, turns: Turns, roles: tuple[str, ...], day: date) -> Turns | None:
        """Some templates show a message only with the next one (a system text): suppose a next."""
        for role in ("user", ASSISTANT):
            longer = self._extend(turns, (*roles, role), day)
            if longer is not None and len(longer) > len(roles):
                return longer[: len(roles)]
        return None

    def _extend(self, turns: Turns, roles: tuple[str, ...], day: date) -> Turns | None:
        """`turns` and those `roles` adds (none yet, if its last messages are not shown alone).

        None if the template is not append-only or changes contents.
        """
        text = self._render(roles, "plain", day)
        marks = [_mark(i) for i in range(len(turns), len(roles))]
        if text is None or not any(mark in text for mark in marks):
            return turns
        settled = _compose(turns, "plain")
        gaps = _cut(text[len(settled) :], marks) if text.startswith(settled) else None
        padded = self._render(roles, "padded", day)
        if gaps is None or padded is None:
            return None
        added = []
        for i, end in enumerate(gaps[1:]):
            core, start = _core(len(turns) + i), gaps[0] if i == 0 else ""
            trims = start + LEAD + core not in padded, core + TRAIL + end not in padded
            added.append(Turn(start, "", end, *trims))
        longer = (*turns, *added)
        if not self._agrees(longer, roles, day):
            return None
        if roles[-1] == ASSISTANT and turns and len(added) == 1:
            opened = self._opened(settled, added[0], roles[:-1], day)
            return None if opened is None else (*turns, opened)
        return longer

    def _opened(self, settled: str, turn: Turn, before: tuple[str, ...], day: date) -> Turn | None:
        """`turn` with its start as the template opens an answer; None if it differs."""
        text = self._render(before, "opened", day)
        if text is None or text == settled:
            opening = "" if turn.start.isspace() else turn.start
        elif text.startswith(settled):
            opening = text[len(settled) :]
        else:
            return None
        glue = turn.start.removeprefix(opening)
        if not turn.start.startswith(opening) or glue.strip():
            return None
        return Turn(opening, glue, turn.end, turn.trims_lead, turn.trims_trail)

    def _render(self, roles: tuple[str, ...], form: str, day: date) -> str | None:
        """A rendering with marks; None where the template refuses these roles."""
        key = roles, form, day
        if key not in self._renderings:
            template = self._compiled()
            try:
                text = template.render(_messages(roles, form), form == "opened", day)
            except TemplateError:
                self._renderings[key] = None
            else:
                self._renderings[key] = text
        return self._renderings[key]

    def _compiled(self) -> Template:
        if self._source is None:
            raise TemplateError(
                "this model has no chat template, so it has no roles; "
                "write the prompt as plain text"
            )
        if self._template is None:
            self._template = Template(self._source, self._names)
        return self._template


def _mark(i: int) -> str:
    return f"Zq{i}qZ"


def _core(i: int) -> str:
    """A mark with a closed thought in it, which some templates cut out of earlier answers."""
    return f"Zq{i}qA<think>t</think>B{i}qZ"


def _messages(roles: tuple[str, ...], form: str) -> list[Message]:
    padded = form == "padded"
    return [
        Message(role, LEAD + _core(i) + TRAIL if padded else _mark(i))
        for i, role in enumerate(roles)
    ]


def _compose(turns: Turns, form: str) -> str:
    """The rendering that `turns` predict for the marks of `form`."""
    parts: list[str] = []
    for i, turn in enumerate(turns):
        content = _mark(i)
        if form == "padded":
            lead, trail = LEAD * (not turn.trims_lead), TRAIL * (not turn.trims_trail)
            content = lead + _core(i) + trail
        parts += (turn.start, turn.glue, content, turn.end)
    return "".join(parts)


def _cut(text: str, marks: Sequence[str]) -> list[str] | None:
    """The text around the marks; None unless each stands in it once and in order."""
    gaps: list[str] = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            return None
        gaps.append(before)
    return None if any(mark in text for mark in marks) else [*gaps, text]


def _mask(
    messages: Sequence[Message], specials: Sequence[str]
) -> tuple[list[Message], dict[str, str]]:
    """Contents with one unused character for each control token's text, and the way back."""
    used = set("".join(message.content for message in messages))
    free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
    shown: dict[str, str] = {}
    masked = list(messages)
    for text in specials:
        if any(text in message.content for message in masked):
            stand_in = next(free)
            shown[stand_in] = text
            masked = [Message(m.role, m.content.replace(text, stand_in)) for m in masked]
    return masked, shown


def _unmask(text: str, shown: Mapping[str, str]) -> Iterator[Run]:
    done = 0
    for i, char in enumerate(text):
        if char in shown:
            if i > done:
                yield Run(text[done:i], True)
            yield Run(shown[char], False)
            done = i + 1
    if done < len(text):
        yield Run(text[done:], True)
