"""`branchwork chat`: talk to a model; what was said before comes from the cache.

At a terminal a prompt with line editing; with a pipe each line is a turn. Replies go to standard
output, costs and notes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from ...backend.config import EngineConfig
from ...lang import shell
from ...lang.errors import InvalidRequest, PromptTooLong, RequestError, to_wire
from ...lang.sampling import Sampling
from ..chat import INTERRUPTED, Chat, Turn
from ..show import print_json_line
from .run import open_engine

with contextlib.suppress(ImportError):  # line editing, where the system has it
    import readline  # noqa: F401 - `input` uses it once it is loaded

HELP = """\
/undo       forget the last turn; its branch stays cached
/reset      forget all turns, keep the system message
/save FILE  write the conversation as JSON
/help       this list
/quit       end (Ctrl-D too); Ctrl-C stops a reply
//...       say a line that begins with a slash"""


@dataclass(frozen=True, slots=True)
class Style:
    """How the session talks: `interactive` has a person at a terminal, `as_json` a program."""

    interactive: bool
    as_json: bool


def chat(system: str, sampling: Sampling, config: EngineConfig, as_json: bool) -> None:
    """Open the engine and talk until the input ends or says /quit."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    style = Style(interactive=at_terminal and not as_json, as_json=as_json)
    with open_engine(config) as engine:
        session = Session(Chat(engine.client, sampling, system), style)
        session.run(_typed(session) if style.interactive else sys.stdin)


def _typed(session: Session) -> Iterator[str]:
    """Lines of a person; Ctrl-D ends them, Ctrl-C drops the line."""
    session.note("/help lists the commands, Ctrl-D ends")
    while True:
        try:
            yield input("> ")
        except EOFError:
            session.note("")
            return
        except KeyboardInterrupt:
            session.note("\n/quit or Ctrl-D ends the session")


class Session:
    """What is done with each line."""

    def __init__(self, chat: Chat, style: Style) -> None:
        """Nothing is asked yet."""
        self._chat = chat
        self._style = style
        self._console = Console(stderr=True, soft_wrap=True)
        self._commands: dict[str, Callable[[str], None]] = {
            "/undo": self._undo,
            "/reset": self._reset,
            "/save": self._save,
            "/help": self._help,
        }

    def run(self, lines: Iterator[str]) -> None:
        """Answer line by line. A line that cannot be served is told so; the session goes on."""
        for each in lines:
            line = each.strip()
            if line == "/quit":
                return
            if not line:
                continue
            try:
                self._do(line)
            except RequestError as error:
                self._refused(error)

    def note(self, text: str) -> None:
        """A line beside the conversation."""
        sys.stdout.flush()
        self._console.print(Text(text, style="dim"))

    def _do(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            self._say(line.removeprefix("/"))
            return
        name, _, rest = line.partition(" ")
        command = self._commands.get(name)
        if command is None:
            known = ", ".join([*self._commands, "/quit"])
            raise InvalidRequest(f"unknown command {name}; there are {known}")
        command(rest.strip())

    def _say(self, text: str) -> None:
        before = len(self._chat.turns)
        hear = _silent if self._style.as_json else _write
        try:
            turn = shell.run(lambda: self._chat.ask(text, hear))
        except KeyboardInterrupt:
            if not self._style.interactive:  # of a pipe it ends all: nobody can type /quit
                raise
            _write("\n")
            kept = len(self._chat.turns) > before
            self.note(INTERRUPTED + ("" if kept else "; nothing was said, the turn is dropped"))
            return
        if self._style.as_json:
            print_json_line(as_dict(turn, len(self._chat.turns)))
        else:
            _write("\n")
            self.note(cost(turn))

    def _refused(self, error: RequestError) -> None:
        code, message = to_wire(error)
        if self._style.as_json:
            print_json_line({"error": {"code": code, "message": message}})
        else:
            hint = "; /undo or /reset makes room" if isinstance(error, PromptTooLong) else ""
            self.note(f"branchwork: {message}{hint}")

    def _undo(self, rest: str) -> None:
        turn = self._chat.undo()
        n = len(self._chat.turns)
        self.note("nothing to undo" if turn is None else f"undone: {turn.user} ({n} turns left)")

    def _reset(self, rest: str) -> None:
        self._chat.reset()
        self.note("all turns forgotten")

    def _save(self, rest: str) -> None:
        if not rest:
            raise InvalidRequest("/save needs a file: /save FILE")
        path = Path(rest).expanduser()
        text = json.dumps({"messages": self._chat.messages()}, indent=2, ensure_ascii=False)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
        self.note(f"saved {len(self._chat.turns)} turns to {path}")

    def _help(self, rest: str) -> None:
        self.note(HELP)


def cost(turn: Turn) -> str:
    """What a turn cost, in one line."""
    usage = turn.usage
    if usage is None:
        return turn.reason
    parts = [
        f"prompt {usage.prompt_tokens:,}",
        f"cached {usage.cached_tokens:,}",
        f"computed {usage.computed_tokens:,}",
        f"drawn {usage.completion_tokens:,}",
    ]
    speed = tokens_per_second(turn)
    if speed is not None:
        parts.append(f"{speed:.1f} tok/s")
    if turn.reason == "length":
        parts.append("cut off (--max-tokens)")
    return ", ".join(parts)


def tokens_per_second(turn: Turn) -> float | None:
    """Speed of drawing, the prompt left out; None where fewer than two tokens were drawn."""
    usage = turn.usage
    if usage is None or usage.completion_tokens < 2:
        return None
    seconds = usage.seconds - usage.time_to_first_token
    return (usage.completion_tokens - 1) / seconds if seconds > 0 else None


def as_dict(turn: Turn, number: int) -> dict[str, object]:
    """A turn for a machine; turns are counted from 1, those undone not."""
    return {
        "turn": number,
        "user": turn.user,
        "reply": turn.reply,
        "finish_reason": turn.reason,
        "usage": msgspec.to_builtins(turn.usage),
        "tokens_per_second": tokens_per_second(turn),
    }


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _silent(text: str) -> None:
    """Where the whole reply comes in one line."""
