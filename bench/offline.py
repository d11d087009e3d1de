"""How long do the workloads take on the embedded engine, and what of them is computed?

    branchwork bench offline [--scale 0.25] [--only few-shot,tree] [--repeats 3] [--json]

Each repeat has fresh text. The engine is warmed up with a repeat at a small scale that is not
counted. Times are medians of the repeats, with the least and the most; tokens are of the last one.
`--record FILE` appends one line a workload.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..backend.embedded import Engine
from ..lang.errors import InvalidRequest
from ..lang.program import Engine as AnyEngine
from . import workloads
from .measure import Outcome, run
from .record import Record, append, record, to_line

WARM_SCALE = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how often."""

    names: tuple[str, ...]
    scale: float
    repeats: int
    seed: int


def measure(engine: AnyEngine, plan: Plan) -> dict[str, list[Outcome]]:
    """Outcomes by workload, one a repeat; repeats go round all workloads, so noise meets all."""
    found: dict[str, list[Outcome]] = {name: [] for name in plan.names}
    for name in plan.names:
        run(workloads.make(name, seed=plan.seed, repeat=-1, scale=WARM_SCALE), engine)
    for repeat in range(plan.repeats):
        for name in plan.names:
            made = workloads.make(name, seed=plan.seed, repeat=repeat, scale=plan.scale)
            found[name].append(run(made, engine))
    return found


def records(
    found: dict[str, list[Outcome]], plan: Plan, parameters: dict[str, object]
) -> list[Record]:
    """One a workload."""
    return [
        record(
            f"offline/{name}",
            {"scale": plan.scale, "seed": plan.seed, **parameters},
            {
                "seconds": [each.seconds for each in outcomes],
                "slowest_first_seconds": [each.slowest_first for each in outcomes],
            },
            {key: [getattr(each, key) for each in outcomes] for key in ("calls", *_COUNTS)},
        )
        for name, outcomes in found.items()
    ]


_COUNTS = ("prompt_tokens", "cached_tokens", "computed_tokens", "drawn_tokens")


def table(rows: Iterable[Record]) -> Table:
    """For people."""
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    shown.add_column("workload", no_wrap=True)
    titles = ("calls", "prompt", "cached", "computed", "drawn", "seconds", "least-most", "drawn/s")
    for title in titles:
        shown.add_column(title, justify="right", no_wrap=True)
    for each in rows:
        seconds = each.spread["seconds"]
        counts = [each.facts[key][-1] for key in ("calls", *_COUNTS)]
        shown.add_row(
            each.bench.partition("/")[2],
            *(f"{n:,}" for n in counts),
            f"{seconds.median:.2f}",
            f"{seconds.least:.2f}-{seconds.most:.2f}",
            f"{counts[-1] / seconds.median:.1f}",
        )
    return shown


def chosen(only: str | None) -> tuple[str, ...]:
    """Names of workloads, all of them for None; raises InvalidRequest for an unknown one."""
    names = workloads.NAMES if only is None else tuple(only.split(","))
    for name in names:
        if name not in workloads.NAMES:
            raise InvalidRequest(f"no workload {name!r}; there are {', '.join(workloads.NAMES)}")
    return names


def options(prog: str, doc: str | None, scale: float, repeats: int) -> argparse.ArgumentParser:
    """What the benches over workloads have in common."""
    listed = "\n".join(f"  {name:9} {workloads.about(name)}" for name in workloads.NAMES)
    parser = argparse.ArgumentParser(
        prog=f"branchwork bench {prog}",
        description=doc,
        epilog=f"workloads at scale 1:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=scale, help="times all counts and lengths")
    parser.add_argument("--only", metavar="NAME,NAME", help="these workloads alone")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv-tokens", type=int, default=None)
    parser.add_argument("--record", type=Path, metavar="FILE", help="append the records here")
    parser.add_argument("--json", action="store_true", help="print the records, a line each")
    return parser


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan in the arguments; refuses what could not run, before an engine is opened."""
    if args.repeats < 1:
        raise InvalidRequest(f"--repeats must be at least 1, found {args.repeats}")
    plan = Plan(chosen(args.only), args.scale, args.repeats, args.seed)
    for name in plan.names:
        workloads.make(name, scale=plan.scale)
    return plan


def put_out(rows: Sequence[Record], shown: Table, args: argparse.Namespace) -> None:
    """Print the records or the table, and keep the records where that was asked."""
    if args.record is not None:
        for each in rows:
            append(args.record, each)
    if args.json:
        sys.stdout.writelines(to_line(each) + "\n" for each in rows)
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(shown)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    args = options("offline", __doc__, scale=0.25, repeats=3).parse_args(argv)
    plan = plan_of(args)
    with Engine(args.model, kv_tokens=args.kv_tokens) as engine:
        found = measure(engine, plan)
        model = engine.facts.line
    rows = records(found, plan, {"model": model})
    put_out(rows, table(rows), args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
