"""`branchwork demo`: the branching program of `server/demo.py`, its answer, and what it cost."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...backend.config import EngineConfig
from ...lang.state import State
from ..demo import STYLES, TICKET, triage
from ..report import table, texts_of, tree
from ..show import print_json
from .run import as_dict, open_engine


def demo(ticket: str | None, config: EngineConfig, as_json: bool) -> None:
    """Run the demo and print the answer, the table of calls, and the tree they form."""
    text = ticket or TICKET
    with open_engine(config) as engine, Console(stderr=True).status("7 calls under way"):
        state = triage.run(text, engine=engine)
    if as_json:
        print_json({"program": "triage", "ticket": text, **as_dict(state)})
        return
    show(text, state, Console())


def show(ticket: str, state: State, console: Console) -> None:
    """The three parts, from the result down to how it came to be."""
    report = state.explain()
    for title, part in (
        ("What it said", _answer(ticket, state)),
        ("What each call cost, in tokens", table(report)),
        ("How the calls branched", tree(report, texts_of(state), console)),
    ):
        console.print()
        console.print(Text(title, style="bold underline"))
        console.print(Padding(part, (0, 0, 0, 2), expand=False))
    console.print()
    console.print(Text(str(report.savings), style="bold green"))


def _answer(ticket: str, state: State) -> Table:
    shown = Table.grid(padding=(0, 2))
    scores = sorted(state.scores("category").values(), key=lambda each: -each.probability)
    shares = ", ".join(f"{each.text.strip()} {each.probability:.0%}" for each in scores)
    shown.add_row(Text("ticket", style="dim"), Text(ticket))
    shown.add_row(Text("category", style="dim"), Text(shares))
    best = state.returned["best"]
    for index, (style, reply) in enumerate(zip(STYLES, state["reply"], strict=True)):
        kept = index == best
        shown.add_row(
            Text(style.rstrip(":").lower(), style="dim", no_wrap=True),
            Text(reply.strip(), style="bold" if kept else ""),
            Text(f"good {state.returned['good'][index]:.0%}", no_wrap=True),
            Text("kept" if kept else "", style="bold green"),
        )
    return shown
