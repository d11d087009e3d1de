"""Stop strings are found wherever tokens end, and the text does not depend on where that is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from byte_tokenizer import byte_tokenizer, make
from hypothesis import given
from hypothesis import strategies as st

from branchwork.backend.text.stops import Hit, StopBuffer, StopWatch, watch_factory
from branchwork.backend.text.tokenizer import Run

TEXT = st.text(st.sampled_from("abc\n"), max_size=16)
STOPS = st.lists(st.text(st.sampled_from("abc\n"), min_size=1, max_size=4), max_size=3)


def naive(text: str, stops: list[str]) -> Hit | None:
    """Read character by character; of the stops that end here, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return Hit(stop, end - len(stop))
    return None


def run(parts: list[str], stops: list[str]) -> tuple[list[str], Hit | None]:
    buffer = StopBuffer(stops)
    shown: list[str] = []
    for part in parts:
        text, hit = buffer.push(part)
        shown.append(text)
        if hit is not None:
            return shown, hit
    return [*shown, buffer.flush()], None


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 16), max_size=5))
def test_any_split_of_the_text_stops_at_the_same_place(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    borders = [0, *sorted(cuts), len(text)]
    parts = [text[a:b] for a, b in pairwise(borders)]
    shown, hit = run(parts, stops)
    expected = naive(text, stops)
    assert hit == expected
    assert "".join(shown) == (text if expected is None else text[: expected.position])


@given(text=TEXT, stops=STOPS)
def test_no_text_is_held_back_that_cannot_begin_a_stop(text: str, stops: list[str]) -> None:
    buffer = StopBuffer(stops)
    safe, hit = buffer.push(text)
    if hit is None:
        held = text[len(safe) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(("stop", "kept"), [("Lon", " "), ("ond", " L"), ("n i", " Londo")])
def test_a_stop_string_need_not_line_up_with_tokens(stop: str, kept: str) -> None:
    shown, hit = run([" London", " is big"], [stop])
    assert "".join(shown) == kept
    assert hit == Hit(stop, len(kept))


@pytest.mark.parametrize(
    ("stops", "expected"),
    [(["abcd", "bc"], Hit("bc", 1)), (["bc", "abc"], Hit("abc", 0)), (["ab", "abc"], Hit("ab", 0))],
)
def test_the_stop_that_is_complete_first_wins_then_the_longest(
    stops: list[str], expected: Hit
) -> None:
    for parts in (["abcd"], ["a", "b", "c", "d"], ["ab", "cd"]):
        assert run(parts, stops)[1] == expected


@given(text=TEXT, stops=STOPS)
def test_the_engines_watch_agrees_with_what_is_shown(text: str, stops: list[str]) -> None:
    tokenizer = make(words=("ab", "bca", "\nc"))
    ids = tokenizer.encode([Run(text, False)])
    watch = StopWatch(tokenizer, stops)
    told = next((stop for i in ids if (stop := watch.push(i)) is not None), None)
    expected = naive(text, stops)
    assert told == (None if expected is None else expected.stop)


def test_a_watch_sees_a_stop_made_of_split_characters() -> None:
    watch = watch_factory(byte_tokenizer())(("😀!",), (), 0)
    assert [watch.push(b) for b in "a😀!".encode()] == [None] * 5 + ["😀!"]


def test_a_watch_reads_on_from_a_prompt_that_ends_within_a_character() -> None:
    first, rest = "hello 😀!".encode()[:8], "hello 😀!".encode()[8:]
    watch = watch_factory(byte_tokenizer())(("😀!",), list(first), 0)
    assert [watch.push(b) for b in rest] == [None] * 2 + ["😀!"]
