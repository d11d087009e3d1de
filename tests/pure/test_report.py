"""How a run's calls are drawn: the tree hangs branches where they left, whatever the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from branchwork.backend.model.bar import download_bar
from branchwork.lang.explain import CallRecord, Report
from branchwork.server.report import table, tree
from branchwork.server.show import size


def call(name: str, prompt: int = 10, cached: int = 0, finish_reason: str = "stop") -> CallRecord:
    return CallRecord(
        call=name,
        kind="gen",
        where="file.py:1",
        finish_reason=finish_reason,
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
    )


def screen(encoding: str = "utf-8", width: int = 120) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, force_terminal=False)


def shown(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.TextIOWrapper)
    file.flush()
    buffer = file.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(file.encoding)


def outline(report: Report) -> list[tuple[int, str]]:
    """(depth, call) of each drawn line, the legend left out."""
    console = screen()
    console.print(tree(report, {}, console))
    lines = shown(console).splitlines()[1:]
    found = []
    for line in lines:
        name = line.lstrip("│ ├└─")
        found.append(((len(line) - len(name)) // 4, name.split()[0]))
    return found


def test_a_branch_hangs_below_the_call_it_left_and_its_own_calls_below_its_first() -> None:
    names = ["a", "b", "x[0]", "x[1]", "y[0]", "z[0][1]", "t[copy]", "c"]
    assert outline(Report(tuple(map(call, names)))) == [
        (1, "a"),
        (1, "b"),
        (2, "x[0]"),
        (3, "y[0]"),
        (4, "z[0][1]"),
        (2, "x[1]"),
        (2, "t[copy]"),
        (1, "c"),
    ]


def test_branches_before_any_call_still_have_a_place() -> None:
    assert outline(Report((call("x[0][2]"), call("x[1]")))) == [(1, "x[0][2]"), (1, "x[1]")]
    assert outline(Report(())) == []


def test_bars_show_what_was_cached_and_never_hide_what_was_computed() -> None:
    console = screen()
    report = Report((call("whole", 1000, 0), call("most", 1000, 999), call("none", 0, 0)))
    console.print(tree(report, {"most": "said\nthis"}, console))
    _, whole, most, none = shown(console).splitlines()
    assert (whole.count("█"), whole.count("░")) == (32, 0)
    assert (most.count("█"), most.count("░")) == (1, 31)
    assert (none.count("█"), none.count("░")) == (0, 0)
    assert most.rstrip().endswith("said this")
    assert none.rstrip().endswith("stop")


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    console = screen("ascii")
    console.print(tree(Report((call("a", 10, 5), call("b[0]", 10, 5))), {}, console))
    assert "." * 16 + "#" * 16 in shown(console)


def test_the_table_has_a_row_for_every_call_even_a_failed_one() -> None:
    console = screen()
    console.print(table(Report((call("fine", 1234), call("[bold]", 0, finish_reason="failed")))))
    text = shown(console)
    assert "1,234" in text
    assert "[bold]" in text  # a name is not markup


def test_a_download_bar_is_silent_until_something_is_fetched() -> None:
    quiet = screen()
    with download_bar("tiny", quiet):
        pass
    assert shown(quiet) == ""
    loud = screen()
    with download_bar("tiny", loud) as progress:
        progress("download", 0, 2_000_000)
        progress("download", 2_000_000, 2_000_000)
        progress("unpack", 1, 1)
        progress("wait", 3, 100)
    for words in ("fetching tiny", "2.0/2.0 MB", "unpacking tiny", "another process"):
        assert words in shown(loud)


def test_sizes_read_as_people_write_them() -> None:
    assert [size(n) for n in (17, 3 << 20, 5 << 30)] == ["17 bytes", "3.0 MiB", "5.0 GiB"]
