"""Choices: joint tokenisation, tries, scores that equal brute force, clear refusals."""

from __future__ import annotations

import asyncio

import pytest
from byte_tokenizer import ENDOFTEXT, IM_END, make
from fake_port import FakePort, brute_force_total, even_score
from hypothesis import given, settings
from hypothesis import strategies as st
from text_kinds import TOKENIZERS, library_of

from branchwork.backend.port import Trie
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.folder import Facts
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.layout import lay_out
from branchwork.backend.text.select import bare_prompt, plan_choices
from branchwork.backend.text.tokenizer import Run, Tokenizer
from branchwork.lang.client import complete
from branchwork.lang.errors import InvalidRequest
from branchwork.lang.request import (
    METHODS,
    Finish,
    Request,
    RoleEnd,
    RoleStart,
    Segment,
    Text,
    Tokens,
)

YES_NO = make(words=(" yes", " no", "A:", "yes"))
OPEN = (RoleStart("user"), Text("hi"), RoleEnd("user"), RoleStart("assistant"))


def choose(
    segments: tuple[Segment, ...],
    choices: tuple[str, ...],
    tokenizer: Tokenizer = YES_NO,
    method: str = "total",
) -> tuple[Finish, FakePort]:
    port = FakePort()
    front = Frontend(port, tokenizer, ChatFormat.of(tokenizer), 512)
    request = Request(segments=segments, choices=choices, method=method)
    return asyncio.run(complete(front, request)), port


def paths(trie: Trie) -> list[list[int]]:
    """Token paths, checked to be proper paths of the trie."""
    for path in trie.paths:
        assert [trie.parents[node] for node in path] == [-1, *path[:-1]]
    assert all(parent < node for node, parent in enumerate(trie.parents))
    return [[trie.tokens[node] for node in path] for path in trie.paths]


@pytest.mark.parametrize("kind", ["byte-level", "first", "always", "prepend"])
def test_a_space_before_or_within_the_choices_makes_no_difference(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    inside, _ = choose((Text("a:"),), (" the", " cat", " ^*B&"), tokenizer)
    before, _ = choose((Text("a: "),), ("the", "cat", "^*B&"), tokenizer)
    for finish, prompt in ((inside, "a:"), (before, "a: ")):
        for score in finish.scores:
            ids = tokenizer.encode([Run(prompt + score.text, False)])
            n = len(ids) - len(score.token_logprobs)
            assert score.total == pytest.approx(brute_force_total(even_score, ids, n))
    assert inside.winner == before.winner
    assert (*inside.prompt.ids, *inside.kept.ids) == (*before.prompt.ids, *before.kept.ids)


@settings(deadline=None)
@given(
    prompt=st.text(st.sampled_from(": yeno"), max_size=5).map("A".__add__),
    choices=st.lists(
        st.text(st.sampled_from(" yesno"), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
        unique=True,
    ),
)
def test_scores_differ_as_those_of_the_whole_strings_do(prompt: str, choices: list[str]) -> None:
    whole = [YES_NO.encode([Run(prompt + choice, False)]) for choice in choices]
    bare = YES_NO.encode([Run(prompt, False)])
    finish, port = choose((Text(prompt),), tuple(choices))
    trie = port.jobs[0].trie
    assert trie is not None
    own = [path[:kept] for path, kept in zip(paths(trie), trie.kept, strict=True)]
    assert [[*finish.prompt.ids, *path] for path in own] == whole
    # The prompt is never more than what the bare text shares.
    assert bare[: len(finish.prompt.ids)] == list(finish.prompt.ids)
    ended = any(len(path) > kept for path, kept in zip(paths(trie), trie.kept, strict=True))
    ends = [IM_END] if ended else []
    totals = [brute_force_total(even_score, [*ids, *ends], len(finish.prompt.ids)) for ids in whole]
    assert [score.total for score in finish.scores] == pytest.approx(totals)
    assert finish.winner == totals.index(max(totals))
    assert sum(score.probability for score in finish.scores) == pytest.approx(1)


def test_choices_that_share_tokens_share_nodes() -> None:
    _, port = choose((Text("x"),), ("abc", "abd", "b"))
    assert port.jobs[0].trie == Trie(
        tokens=(*b"abc", *b"d", *b"b"),
        parents=(-1, 0, 1, 1, -1),
        paths=((0, 1, 2), (0, 1, 3), (4,)),
        kept=(3, 3, 1),
        n_bytes=(3, 3, 1),
    )


def test_a_choice_that_begins_another_is_scored_with_the_end_of_turn() -> None:
    finish, port = choose((*OPEN,), ("ab", "abc", "x"))
    trie = port.jobs[0].trie
    assert trie is not None
    assert paths(trie) == [[*b"ab", IM_END], [*b"abc", IM_END], [*b"x", IM_END]]
    assert trie.kept == (2, 3, 1)
    assert finish.winner is not None
    assert finish.kept.ids == tuple(["ab", "abc", "x"][finish.winner].encode())
    assert [len(score.token_logprobs) for score in finish.scores] == [3, 4, 2]


def test_no_end_is_scored_where_no_choice_begins_another() -> None:
    _, port = choose(OPEN, ("ab", "ac"))
    trie = port.jobs[0].trie
    assert trie is not None
    assert IM_END not in trie.tokens
    assert ENDOFTEXT not in trie.tokens


def test_all_of_a_single_choice_is_scored() -> None:
    finish, _ = choose((Text("x"),), ("abc",))
    assert len(finish.scores[0].token_logprobs) == 3
    assert finish.scores[0].probability == 1


def test_after_settled_ids_choices_are_tokenised_alone() -> None:
    settled = Tokens(tuple(b"A: "), (Text("A: "),))
    finish, port = choose((settled,), ("yes", "no"))
    assert finish.prompt.ids == settled.ids
    trie = port.jobs[0].trie
    assert trie is not None
    assert paths(trie) == [[YES_NO.token_id("yes")], [*b"no"]]


def test_choices_directly_after_an_opening_are_the_answers_first_text() -> None:
    finish, _ = choose(OPEN, ("yes", "no"))
    front = Frontend(FakePort(), YES_NO, ChatFormat.of(YES_NO), 512)
    closed = Request(segments=(finish.prompt, finish.kept, RoleEnd("assistant")))
    whole = Request(segments=(*OPEN, Text(finish.text), RoleEnd("assistant")))
    assert front.prepare(closed).prompt.ids == front.prepare(whole).prompt.ids


def test_the_winner_is_the_value_and_its_ids_are_kept() -> None:
    finish, port = choose((Text("x"),), (" yes", " no"), method="token_mean")
    assert finish.winner is not None
    assert finish.text == (" yes", " no")[finish.winner]
    assert finish.reason == "stop"
    assert finish.kept.source == (Text(finish.text),)
    assert YES_NO.decode(finish.kept.ids) == finish.text
    means = [score.token_mean for score in finish.scores]
    assert finish.winner == means.index(max(means))
    assert port.jobs[0].max_tokens == 0
    assert finish.usage.completion_tokens == 0
    assert finish.usage.computed_tokens == 1 + 2


@pytest.mark.parametrize("method", METHODS)
def test_the_engine_and_the_scores_agree_on_the_winner(method: str) -> None:
    finish, port = choose((Text("x"),), (" yes", "zebra", " a"), method=method)
    values = [getattr(score, method) for score in finish.scores]
    assert finish.winner == values.index(max(values))
    assert len(port.jobs) == (2 if method == "unconditional" else 1)


def test_unconditional_scores_the_same_tokens_after_a_bare_start() -> None:
    finish, port = choose((Text("x"),), (" yes", "zebra"), method="unconditional")
    bare, job = port.jobs
    assert bare.trie is not None and job.trie is not None
    assert port.prompts == [[ord("\n")], [ord("x")]]
    assert (bare.trie.tokens, bare.trie.paths) == (job.trie.tokens, job.trie.paths)
    for path, score in zip(paths(job.trie), finish.scores, strict=True):
        alone = brute_force_total(even_score, [ord("\n"), *path], 1)
        assert score.unconditional == pytest.approx(score.total - alone)
    assert finish.usage.computed_tokens == 2 * (1 + len(job.trie.tokens))
    assert bare.id != job.id
    assert finish.usage.prompt_tokens == 1


def test_a_model_with_a_start_token_begins_the_bare_prompt_with_it() -> None:
    facts = Facts(names={"bos_token": "<s>", "eos_token": "</s>"}, adds_bos=True)
    tokenizer = Tokenizer(library_of("first"), facts)
    assert bare_prompt(tokenizer) == [tokenizer.bos_id]


def test_a_prompt_with_no_token_in_common_keeps_its_own_split() -> None:
    tokenizer = make(words=("ax", "ay"))
    layout = lay_out([Text("a")], tokenizer, ChatFormat.of(tokenizer))
    planned = plan_choices(layout, ("x", "y"), "total", tokenizer)
    assert planned.prompt == (ord("a"),)
    assert paths(planned.trie) == [[ord("x")], [ord("y")]]


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (("",), "choice 0 of 1 is the empty string"),
        (("a", ""), "choice 1 of 2 is the empty string"),
        (("a", "b", "a"), "choice 2, 'a', is there twice"),
        (("a\ud800",), "lone surrogate"),
    ],
)
def test_choices_that_cannot_be_scored_are_refused_at_once(
    choices: tuple[str, ...], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        choose((Text("x"),), choices)
    finish, _ = choose((Text("x"),), ("a", "b"))
    assert finish.text in ("a", "b")


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="method must be one of"):
        choose((Text("x"),), ("a", "b"), method="luck")
