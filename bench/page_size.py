"""Which page size is the better default on this machine?

`python -m branchwork.bench.page_size [--json]`: a few-shot batch (one long prefix, many questions,
a few tokens each) and a long decode, on two engines that differ in page size alone, in turn, with
fresh text each round; prints the median times and their ratio. Small pages waste nothing at
divergence and make long page tables; large ones the other way round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence

from ..backend.config import SchedulerConfig
from ..backend.embedded import Engine
from ..lang.dsl import gen
from ..lang.program import program
from ..lang.state import State

SIZES = (1, 16)


@program
def answer(s: State, prefix: str, question: str) -> None:
    """One few-shot question."""
    s += prefix + f"Question: {question}\nAnswer:" + gen("answer", max_tokens=4, ignore_eos=True)


@program
def story(s: State, topic: str) -> None:
    """One long text."""
    s += f"A story about {topic}:" + gen("text", max_tokens=64, ignore_eos=True)


def few_shot(engine: Engine, salt: int) -> float:
    """Seconds for 24 questions on one new prefix of some 600 tokens."""
    shots = (f"Question: What is {salt + i} plus {i}?\nAnswer: {salt + 2 * i}\n" for i in range(30))
    prefix = "".join(shots)
    inputs = [{"prefix": prefix, "question": f"What is {salt} plus {i}?"} for i in range(24)]
    start = time.perf_counter()
    answer.run_batch(inputs, engine=engine)
    return time.perf_counter() - start


def decode(engine: Engine, salt: int) -> float:
    """Seconds for one stream of 64 tokens."""
    start = time.perf_counter()
    story.run(topic=f"number {salt}", engine=engine)
    return time.perf_counter() - start


WORKLOADS = {"few-shot": few_shot, "decode": decode}


def measure(rounds: int) -> dict[str, dict[int, list[float]]]:
    """Seconds by workload and page size, one a round; the first round is not counted."""
    times: dict[str, dict[int, list[float]]] = {w: {n: [] for n in SIZES} for w in WORKLOADS}
    engines = {
        size: Engine(kv_tokens=8192, scheduler=SchedulerConfig(page_size=size), quiet=True)
        for size in SIZES
    }
    try:
        for i in range(rounds + 1):
            for name, work in WORKLOADS.items():
                for size in SIZES if i % 2 else reversed(SIZES):
                    seconds = work(engines[size], 100 + 7 * i)
                    if i:
                        times[name][size].append(seconds)
    finally:
        for engine in engines.values():
            engine.close()
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    times = measure(args.rounds)
    if args.json:
        json.dump(times, sys.stdout)
        sys.stdout.write("\n")
        return 0
    for name, by_size in times.items():
        small, large = (statistics.median(by_size[size]) for size in SIZES)
        ratios = [a / b for a, b in zip(by_size[SIZES[0]], by_size[SIZES[1]], strict=True)]
        sys.stdout.write(
            f"{name}: page size {SIZES[0]} {small:.2f} s, {SIZES[1]} {large:.2f} s, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
