"""How much of its speed does decoding keep beside a Python thread that never rests?

`python -m branchwork.bench.beside_python [--json]`: one stream is decoded alone and beside a
spinning thread, in turn; prints tokens a second of both (median of the rounds) and their ratio. The
thread holds the interpreter lock whenever it can: what is lost goes to the lock and to a core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Sequence

from ..backend.embedded import Engine
from ..lang.dsl import gen
from ..lang.program import program
from ..lang.state import State


@program
def stream(s: State, topic: str, n_tokens: int) -> None:
    """One plain stream."""
    s += f"A long text about {topic}:" + gen("text", max_tokens=n_tokens, ignore_eos=True)


def spin(stop: threading.Event) -> None:
    """Keep the interpreter busy until told to stop."""
    n = 0
    while not stop.is_set():
        for _ in range(1000):
            n += 1


def tokens_per_second(engine: Engine, topic: str, n_tokens: int) -> float:
    """Decode speed of one stream, its prefill left out."""
    state = stream.run(topic=topic, n_tokens=n_tokens, engine=engine)
    meta = state.meta("text")
    return (meta.completion_tokens - 1) / (meta.seconds - meta.time_to_first_token)


def measure(engine: Engine, n_tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """Speeds alone and beside the thread, round by round, after one round that is not counted."""
    alone, beside = [], []
    tokens_per_second(engine, "warm-up", n_tokens)
    for i in range(rounds):
        alone.append(tokens_per_second(engine, f"rivers {i}", n_tokens))
        stop = threading.Event()
        thread = threading.Thread(target=spin, args=(stop,), daemon=True)
        thread.start()
        try:
            beside.append(tokens_per_second(engine, f"bridges {i}", n_tokens))
        finally:
            stop.set()
            thread.join(10)
    return alone, beside


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args(argv)
    with Engine(args.model, kv_tokens=4096) as engine:
        alone, beside = measure(engine, args.tokens, args.rounds)
    ratios = [b / a for a, b in zip(alone, beside, strict=True)]
    record = {
        "question": "decode speed beside a spinning Python thread",
        "tokens": args.tokens,
        "alone_tok_s": alone,
        "beside_tok_s": beside,
        "ratio_median": statistics.median(ratios),
    }
    if args.json:
        json.dump(record, sys.stdout)
        sys.stdout.write("\n")
        return 0
    sys.stdout.write(
        f"alone {statistics.median(alone):.1f} tok/s, beside a spinning thread "
        f"{statistics.median(beside):.1f} tok/s, ratio {record['ratio_median']:.2f} "
        f"(from {min(ratios):.2f} to {max(ratios):.2f} in {args.rounds} rounds)\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
