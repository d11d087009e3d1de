"""What does each part of the sharing save, in computed tokens and in seconds?

    branchwork bench ablation [--scale 0.25] [--only few-shot,tree] [--running 16] [--json]

The same text on four setups: no cache (a namespace a call), the cache alone, the cache and deferral
(a request waits for a twin's prefill that it can use), and ageing on top (longest cached prefix
first, but nobody is overtaken more than `--overtakes` times; without it without end). Ageing saves
nothing: it bounds how long a call waits, which the last column shows. `--running` bounds the
sequences in flight, so that there is a queue to order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from rich.table import Table

from ..backend.config import SchedulerConfig
from ..backend.embedded import Engine
from ..lang.program import Engine as AnyEngine
from . import workloads
from .measure import Outcome, Unshared, run
from .offline import WARM_SCALE, Plan, options, plan_of, put_out
from .record import Record, record

NEVER = 1 << 40
"""Overtakes no queue ever reaches."""

Open = Callable[[SchedulerConfig], AbstractContextManager[AnyEngine]]


@dataclass(frozen=True, slots=True)
class Setup:
    """One column: how the engine schedules, and whether calls share at all."""

    name: str
    shares: bool
    defers: bool
    ages: bool

    def config(self, running: int, overtakes: int) -> SchedulerConfig:
        """The engine's."""
        return SchedulerConfig(
            max_running=running,
            defer_twins=self.defers,
            max_overtakes=overtakes if self.ages else NEVER,
        )


SETUPS = (
    Setup("no cache", shares=False, defers=False, ages=False),
    Setup("cache", shares=True, defers=False, ages=False),
    Setup("+ deferral", shares=True, defers=True, ages=False),
    Setup("+ ageing", shares=True, defers=True, ages=True),
)

Found = dict[tuple[str, str], list[Outcome]]


def measure(open_engine: Open, plan: Plan, running: int, overtakes: int) -> Found:
    """Outcomes by workload and setup.

    All engines stay open and take turns, the order reversed every other repeat, so that a noisy
    neighbour meets all of them. Each has a cache of its own; text is fresh each repeat.
    """
    found: Found = {(name, each.name): [] for name in plan.names for each in SETUPS}
    with ExitStack() as stack:
        engines = {
            each: stack.enter_context(open_engine(each.config(running, overtakes)))
            for each in SETUPS
        }
        for engine in engines.values():
            run(workloads.make("few-shot", repeat=-1, scale=WARM_SCALE), engine)
        for repeat in range(plan.repeats):
            for name in plan.names:
                made = workloads.make(name, seed=plan.seed, repeat=repeat, scale=plan.scale)
                for each in reversed(SETUPS) if repeat % 2 else SETUPS:
                    engine = engines[each] if each.shares else Unshared(engines[each])
                    found[name, each.name].append(run(made, engine))
    return found


def records(found: Found, parameters: dict[str, object]) -> list[Record]:
    """One a workload and setup."""
    return [
        record(
            f"ablation/{name}/{setup}",
            parameters,
            {
                "seconds": [each.seconds for each in outcomes],
                "slowest_first_seconds": [each.slowest_first for each in outcomes],
            },
            {"computed_tokens": [each.computed_tokens for each in outcomes]},
        )
        for (name, setup), outcomes in found.items()
    ]


def table(rows: Iterable[Record]) -> Table:
    """For people: computed tokens of the last repeat, medians of the seconds."""
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("workload", "setup"):
        shown.add_column(title, no_wrap=True)
    for title in ("computed tokens", "seconds", "least-most", "slowest first token s"):
        shown.add_column(title, justify="right", no_wrap=True)
    for each in rows:
        _, name, setup = each.bench.split("/")
        seconds = each.spread["seconds"]
        shown.add_row(
            name,
            setup,
            f"{each.facts['computed_tokens'][-1]:,}",
            f"{seconds.median:.2f}",
            f"{seconds.least:.2f}-{seconds.most:.2f}",
            f"{each.spread['slowest_first_seconds'].median:.2f}",
        )
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = options("ablation", __doc__, scale=0.25, repeats=1)
    parser.add_argument("--running", type=int, default=16, help="sequences in flight")
    parser.add_argument("--overtakes", type=int, default=8, help="before one is next")
    args = parser.parse_args(argv)
    plan = plan_of(args)
    tokens = args.kv_tokens or 16_384

    def open_engine(config: SchedulerConfig) -> Engine:
        return Engine(args.model, kv_tokens=tokens, scheduler=config, quiet=True)

    found = measure(open_engine, plan, args.running, args.overtakes)
    parameters = {name: getattr(args, name) for name in ("scale", "seed", "running", "overtakes")}
    rows = records(found, {**parameters, "kv_tokens": tokens, "model": args.model})
    put_out(rows, table(rows), args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
