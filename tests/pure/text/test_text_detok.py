"""Streamed text equals whole text, and half a character is never shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from byte_tokenizer import IM_END, byte_tokenizer, make
from hypothesis import given
from hypothesis import strategies as st
from text_kinds import KINDS, TOKENIZERS

from branchwork.backend.text.detok import BROKEN, MAX_WINDOW, Detok
from branchwork.backend.text.tokenizer import Run, Tokenizer

TEXTS = st.text(st.sampled_from("ab the\né€😀👩\u200d🚀"), max_size=30)
ANY_BYTES = st.lists(
    st.sampled_from([0x61, 0x20, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF]),
    max_size=24,
)


def decode_after(tokenizer: Tokenizer, ids: Sequence[int], context: Sequence[int] = ()) -> str:
    """The text of `ids` where they follow `context`: what a `Detok` returns for them in all."""
    detok = Detok(tokenizer, context)
    return "".join(map(detok.push, ids)) + detok.flush()


def pieces(tokenizer: Tokenizer, ids: list[int], context: list[int]) -> list[str]:
    detok = Detok(tokenizer, context)
    return [*map(detok.push, ids), detok.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, cut=st.integers(0, 40))
def test_any_cut_of_a_text_streams_without_broken_characters(
    kind: str, text: str, cut: int
) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode([Run(text, False)])
    context, drawn = ids[:cut], ids[cut:]
    shown = pieces(tokenizer, drawn, context)
    assert not any(BROKEN in piece for piece in shown)
    assert tokenizer.decode(ids).endswith("".join(shown))
    if not cut:
        assert "".join(shown) == tokenizer.decode(ids)


@given(ids=ANY_BYTES)
def test_streamed_equals_whole_for_any_bytes(ids: list[int]) -> None:
    assert "".join(pieces(byte_tokenizer(), ids, [])) == bytes(ids).decode(errors="replace")


@given(context=ANY_BYTES, ids=ANY_BYTES)
def test_text_after_a_prompt_completes_what_the_whole_says(
    context: list[int], ids: list[int]
) -> None:
    whole = bytes([*context, *ids]).decode(errors="replace")
    text = "".join(pieces(byte_tokenizer(), ids, context))
    assert whole.endswith(text)
    assert text == decode_after(byte_tokenizer(), ids, context)
    # Nothing of the prompt but a character that ids complete is in it.
    safe = bytes(context).decode(errors="replace").rstrip(BROKEN)
    assert len(text) <= len(whole) - len(safe)


def test_a_prompt_that_ends_within_a_character_is_not_repeated() -> None:
    emoji = "😀".encode()
    prompt, drawn = [*b"hello ", *emoji[:2]], [*emoji[2:], *b" ok"]
    assert pieces(byte_tokenizer(), drawn, prompt) == ["", "😀", " ", "o", "k", ""]


def test_a_cut_within_a_character_shows_as_one_at_the_very_end() -> None:
    shown = pieces(byte_tokenizer(), [*b"a", *"😀".encode()[:3]], [])
    assert shown == ["a", "", "", "", BROKEN]


def test_endless_broken_bytes_are_shown_and_forgotten() -> None:
    detok = Detok(byte_tokenizer())
    shown = "".join(detok.push(0xFF) for _ in range(500))
    assert len(detok._window) <= MAX_WINDOW + 1
    assert shown + detok.flush() == BROKEN * 500


def test_control_tokens_have_no_text() -> None:
    assert pieces(byte_tokenizer(), [0x61, IM_END, 0x62], []) == ["a", "", "b", ""]


@pytest.mark.parametrize("kind", ["first", "always", "prepend"])
def test_the_first_word_keeps_its_space_after_a_prompt_only(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    the = tokenizer.encode([Run("the", False)])
    assert decode_after(tokenizer, the) == "the"
    assert decode_after(tokenizer, the, context=the) == " the"


def test_clean_marks_the_borders_of_characters() -> None:
    detok = Detok(byte_tokenizer())
    clean = []
    for byte in "é€a".encode():
        detok.push(byte)
        clean.append(detok.clean)
    assert clean == [False, True, False, False, True, True]


@given(text=TEXTS)
def test_a_long_stream_decodes_a_short_window_only(text: str) -> None:
    tokenizer = make(words=("the", " the"))
    detok = Detok(tokenizer)
    for token_id in tokenizer.encode([Run(text * 5, False)]):
        detok.push(token_id)
        assert len(detok._window) <= MAX_WINDOW


def test_pieces_grow_with_the_ids() -> None:
    ids = list("né 😀".encode())
    lengths = [len(decode_after(byte_tokenizer(), ids[:n])) for n in range(len(ids) + 1)]
    assert all(b - a in (0, 1) for a, b in pairwise(lengths))
