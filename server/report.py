"""How a run's calls look: a table, and the tree they form. Knows reports, not engines.

Called by `commands/run.py` and `commands/demo.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..lang.explain import CallRecord, Report
from ..lang.state import State

_NAME = 20
_TEXT = 60
_BRANCH = re.compile(r"\[\w+\]")


def table(report: Report) -> Table:
    """One row a call; tokens and seconds."""
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    shown.add_column("call")
    for title in ("prompt", "cached", "computed", "generated", "seconds"):
        shown.add_column(title, justify="right")
    for call in report.records:
        counts = (call.prompt_tokens, call.cached_tokens, call.computed_tokens)
        numbers = [f"{n:,}" for n in (*counts, call.completion_tokens)]
        shown.add_row(Text(call.call), *numbers, f"{call.seconds:.2f}")
    return shown


@dataclass(frozen=True, slots=True)
class _Node:
    """A drawn line and how deep it stands."""

    tree: Tree
    depth: int

    def add(self, label: Text) -> _Node:
        return _Node(self.tree.add(label), self.depth + 1)


def tree(report: Report, texts: Mapping[str, str], console: Console) -> Tree:
    """The calls as they branched off each other, each with its prompt as a bar.

    A bar's length is the prompt's, its shaded part came from the cache. `texts` holds what a call
    said, by the call's name and branch ("reply[0]"). A branch's first call hangs below the newest
    call of the text it left, its later calls below its first.
    """
    bar = _Bar.of(report, console)
    top = _Node(Tree(Text(f"{bar.cached} from the cache  {bar.computed} computed")), 0)
    first: dict[tuple[str, ...], _Node] = {(): top}
    newest = dict(first)
    for call in report.records:
        path = tuple(_BRANCH.findall(call.call))
        if path in first:
            parent = first[path]
        else:
            parent = next(
                newest[path[:n]] for n in reversed(range(len(path))) if path[:n] in newest
            )
        newest[path] = parent.add(_line(call, texts.get(call.call, ""), bar, parent.depth))
        first.setdefault(path, newest[path])
    return top.tree


def texts_of(state: State) -> dict[str, str]:
    """What the calls of a finished run said, where the root state knows it.

    Its own names, and the lists that joins gathered.
    """
    found: dict[str, str] = {}
    for name in state.names():
        value = state[name]
        if isinstance(value, list):
            found |= {f"{name}[{i}]": each for i, each in enumerate(value) if isinstance(each, str)}
        elif isinstance(value, str):
            found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class _Bar:
    """How prompts are drawn: two blocks, the length of a whole bar, the tokens it stands for."""

    cached: str
    computed: str
    length: int
    tokens: int

    @classmethod
    def of(cls, report: Report, console: Console) -> _Bar:
        """Blocks as the terminal can show them; the longest prompt fills the bar."""
        longest = max((call.prompt_tokens for call in report.records), default=0)
        unicode = (console.encoding or "").lower().startswith("utf")
        cached, computed = ("░", "█") if unicode else (".", "#")
        return cls(cached, computed, 32 if console.width >= 100 else 20, max(longest, 1))

    def cells(self, n_tokens: int) -> int:
        """Blocks for that many tokens; the fewest that can be seen where there are any."""
        return max(round(self.length * n_tokens / self.tokens), 1 if n_tokens else 0)


def _line(call: CallRecord, said: str, bar: _Bar, depth: int) -> Text:
    computed = bar.cells(call.prompt_tokens - call.cached_tokens)
    cached = bar.cells(call.prompt_tokens) - computed
    said = " ".join(said.split())
    short = said if len(said) <= _TEXT else said[: _TEXT - 3] + "..."
    # Each level of the tree indents by four: the bars stand below each other all the same.
    name = f"{call.call:<{max(0, _NAME - 4 * depth)}} "
    line = Text(name, style="bold", no_wrap=True, overflow="ellipsis")
    line.append(bar.cached * cached, style="not bold green")
    line.append(bar.computed * computed, style="not bold yellow")
    line.append(" " * (bar.length - cached - computed))
    return line.append(f" {short or call.finish_reason}", style="not bold")
