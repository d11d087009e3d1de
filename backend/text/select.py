"""Choices as a token trie: each is tokenised jointly with the text before it.

"A:" + " yes" and "A: " + "yes" are the same string and must score alike, so the last open text is
not tokenised alone: prompt and choice are split as one string would be, and what all choices and
the bare prompt share becomes the prompt. Knows no ports and no scores. Called by the front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import msgspec

from ...lang.choose import check_method, n_bytes
from ...lang.errors import InvalidRequest
from ..port import Trie
from .layout import Layout
from .tokenizer import Run, Tokenizer


@dataclass(frozen=True, slots=True)
class Choices:
    """`prompt` ids that every choice follows, and the choices below it."""

    prompt: tuple[int, ...]
    trie: Trie

    def kept_ids(self, choice: int) -> tuple[int, ...]:
        """The ids that join the sequence if `choice` wins."""
        nodes = self.trie.paths[choice][: self.trie.kept[choice]]
        return tuple(self.trie.tokens[node] for node in nodes)

    def logprobs(self, node_logprobs: Sequence[float]) -> list[list[float]]:
        """The log-probabilities of each choice's tokens, from those of the trie's nodes."""
        return [[node_logprobs[node] for node in path] for path in self.trie.paths]

    @property
    def depth(self) -> int:
        """Length of the longest path in tokens."""
        return max(map(len, self.trie.paths))


def check_choices(choices: Sequence[str], method: str) -> None:
    """Refuse choices that cannot be told apart or scored, and unknown methods."""
    check_method(method)
    for i, choice in enumerate(choices):
        if not choice:
            raise InvalidRequest(
                f"choice {i} of {len(choices)} is the empty string, which has no tokens to score; "
                "leave it out or write what stands for it ('none', say)"
            )
        if choice in choices[:i]:
            raise InvalidRequest(f"choice {i}, {choice!r}, is there twice; leave one out")


def plan_choices(
    layout: Layout, choices: Sequence[str], method: str, tokenizer: Tokenizer
) -> Choices:
    """Split prompt and choices. The prompt never reaches into a choice's own characters.

    Where one choice's tokens begin another's, all get the end-of-turn token to be scored, so that
    like is compared with like. Raises InvalidRequest for an empty prompt.
    """
    # The glue is markup, but it holds white space only and never a control token.
    endings = [Run("", False), *(Run(layout.glue + choice, False) for choice in choices)]
    bare, *paths = layout.open_ids(tokenizer, endings)
    n = _common([bare, *paths])
    if n == 0 and not layout.settled:
        # No token is common to all: keep the prompt's own split rather than have no prompt.
        if not bare:
            raise empty_prompt()
        n = len(bare)
        paths = [bare + tokenizer.encode([Run(choice, False)], bare[-1]) for choice in choices]
    own = [path[n:] for path in paths]
    for choice, tokens in zip(choices, own, strict=True):
        if not tokens:
            raise InvalidRequest(f"choice {choice!r} has no tokens of its own after this prompt")
    end = _end_of_turn(layout, tokenizer) if _one_begins_another(own) else None
    trie = msgspec.structs.replace(
        _trie(own, end), method=method, n_bytes=tuple(map(n_bytes, choices))
    )
    return Choices((*layout.settled, *paths[0][:n]), trie)


def bare_prompt(tokenizer: Tokenizer) -> list[int]:
    """What stands before the choices where they are scored without their prompt: as little as can.

    The start token where the model's prompts have one, else a line break; never nothing, for the
    first token needs something to follow.
    """
    return tokenizer.with_start([]) or tokenizer.encode([Run("\n", False)])


def empty_prompt() -> InvalidRequest:
    """Nothing stands before the call."""
    return InvalidRequest(
        "empty prompt: no text stands before this call and the model has no start token; "
        "add some text or a message first"
    )


def _common(paths: Sequence[Sequence[int]]) -> int:
    """How many leading ids all paths share."""
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*paths, strict=False)))


def _one_begins_another(paths: Sequence[Sequence[int]]) -> bool:
    """In sorted order a path stands right before one that it begins."""
    ordered = sorted(tuple(path) for path in paths)
    return any(a == b[: len(a)] for a, b in pairwise(ordered))


def _end_of_turn(layout: Layout, tokenizer: Tokenizer) -> int | None:
    """The token that closes the open message; outside of one, the model's end token."""
    closing = tokenizer.encode([Run(layout.end, True)])
    return next((i for i in closing if i in tokenizer.end_ids), tokenizer.eos_id)


def _trie(paths: Sequence[Sequence[int]], end: int | None) -> Trie:
    nodes: dict[tuple[int, int], int] = {}  # (parent node, token) -> node, in order of creation
    routes: list[tuple[int, ...]] = []
    for path in paths:
        route: list[int] = []
        for token in (*path, end) if end is not None else path:
            parent = route[-1] if route else -1
            route.append(nodes.setdefault((parent, token), len(nodes)))
        routes.append(tuple(route))
    return Trie(
        tokens=tuple(token for _, token in nodes),
        parents=tuple(parent for parent, _ in nodes),
        paths=tuple(routes),
        kept=tuple(len(path) for path in paths),
    )
