"""What the commands print: plain lines, JSON for machines, aligned facts.

Results go to standard output, everything about how they came to be (bars, engine line, errors) to
standard error, so that `branchwork … --json | jq` works. Knows no engine. Called by `commands/`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text


def say(text: str) -> None:
    """One line of result, printed as it is (no markup, no wrapping)."""
    sys.stdout.write(text + "\n")


def print_json(value: object) -> None:
    """One JSON document on standard output, whole or not at all.

    What JSON does not know (a key that is no string, NaN, a list that holds itself) is printed as
    its text.
    """
    sys.stdout.write(json.dumps(_plain(value, ()), indent=2, ensure_ascii=False) + "\n")


def print_json_line(value: object) -> None:
    """One JSON document on one line, at once: whoever reads line by line does not wait for more."""
    sys.stdout.write(json.dumps(_plain(value, ()), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _plain(value: object, above: tuple[int, ...]) -> object:
    if isinstance(value, Mapping | list | tuple | set | frozenset) and id(value) not in above:
        inside = (*above, id(value))
        if isinstance(value, Mapping):
            return {str(key): _plain(each, inside) for key, each in value.items()}
        return [_plain(each, inside) for each in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)


def rows(facts: Mapping[str, str]) -> None:
    """Names and values, aligned."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    Console(soft_wrap=False).print(table)


def size(n_bytes: int) -> str:
    """A size as people read it."""
    for unit, step in (("GiB", 30), ("MiB", 20)):
        if n_bytes >= 1 << step:
            return f"{n_bytes / (1 << step):.1f} {unit}"
    return f"{n_bytes} bytes"
