"""The shapes of work a runtime for programs must be quick at, as programs over any client.

Each is one program and its inputs, made by `make` from a seed and the number of the repeat: the
same numbers give the same text, another repeat shares no sentence with it, so a cache that has
seen one repeat knows nothing of the next. All lengths are exact (`ignore_eos`). `scale` multiplies
counts and lengths alike, so work goes with its square; fan-out and depth stay. Knows no engine.
Used by `offline` and `ablation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..lang.dsl import gen, system, user
from ..lang.errors import InvalidRequest
from ..lang.program import Engine, Program, program
from ..lang.state import State
from .texts import Texts

Inputs = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A program, one input a run of it, how many calls that makes and tokens it draws in all.

    `width`: runs at once (None: all of them).
    """

    name: str
    program: Program
    inputs: Inputs
    n_calls: int
    n_drawn: int
    width: int | None = None

    def run(self, engine: Engine) -> list[State]:
        """All of it; states in input order."""
        return self.program.run_batch(self.inputs, engine=engine, max_concurrency=self.width)


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers as the shapes below state them, times a scale."""

    scale: float = 1.0

    def __call__(self, full: int, least: int = 1) -> int:
        """`full` scaled and rounded up, not below `least` (unless `full` is)."""
        return max(min(least, full), math.ceil(full * self.scale))


@program
def continue_text(s: State, prompt: str, n_tokens: int) -> None:
    """One stream."""
    s += prompt + gen("text", max_tokens=n_tokens, ignore_eos=True)


@program
def answer(s: State, shots: str, question: str) -> None:
    """A question below a prefix that all questions share."""
    s += shots + f"Question: {question}\nAnswer:" + gen("answer", max_tokens=1, ignore_eos=True)


@program(temperature=1.0, seed=0)
def think(s: State, problem: str, n_tokens: int) -> None:
    """Tree of thought: each node forks three thoughts on one and the same prompt, two levels."""
    s += f"Problem: {problem}\n"
    level = [s]
    for depth in range(TOT_DEPTH):
        grown: list[State] = []
        for node in level:
            branches = node.fork(TOT_FAN_OUT)
            branches += f"Step {depth + 1}:" + gen("step", max_tokens=n_tokens, ignore_eos=True)
            branches += "\n"
            grown += list(branches)
        level = grown


@program
def look_up(s: State, document: str, question: str, n_tokens: int) -> None:
    """A question about a document that other questions are about too."""
    s += system("Answer from the document alone.")
    s += user(f"Document: {document}\n\nQuestion: {question}")
    s.assistant(gen("answer", max_tokens=n_tokens, ignore_eos=True))


@program
def act(s: State, tools: str, task: str, seen: list[str], n_tokens: int) -> None:
    """An agent: a call a step, each step's observation below the last call."""
    s += system(tools)
    s += user(task)
    for observation in seen:
        s.assistant(gen("action", max_tokens=n_tokens, ignore_eos=True))
        s += user(f"Observation: {observation}")


@program
def talk(s: State, rules: str, questions: list[str], n_tokens: int) -> None:
    """A conversation."""
    s += system(rules)
    for question in questions:
        s += user(question)
        s.assistant(gen("reply", max_tokens=n_tokens, ignore_eos=True))


TOT_FAN_OUT = 3
TOT_DEPTH = 2


def _single(texts: Texts, size: Size) -> Workload:
    """Two streams of 128 tokens, one after the other."""
    return _streams("single", texts, 2, size(128))


def _many(texts: Texts, size: Size) -> Workload:
    """64 streams of 64 tokens at once, nothing shared."""
    return _streams("streams", texts, size(64), size(64))


def _streams(name: str, texts: Texts, n: int, n_tokens: int) -> Workload:
    prompts = (f"A story about the {texts.topic()}. {texts.words(20)}" for _ in range(n))
    inputs = tuple({"prompt": prompt, "n_tokens": n_tokens} for prompt in prompts)
    width = 1 if name == "single" else None
    return Workload(name, continue_text, inputs, n, n * n_tokens, width)


def _few_shot(texts: Texts, size: Size) -> Workload:
    """48 questions of one token below one prefix of about 900."""
    n_shots, n = size(26), size(48, least=2)
    shots = "".join(
        f"Question: {texts.sentence()} {texts.sentence()} Is that so?\nAnswer: yes\n\n"
        for _ in range(n_shots)
    )
    inputs = tuple({"shots": shots, "question": texts.sentence()} for _ in range(n))
    return Workload("few-shot", answer, inputs, n, n)


def _tree(texts: Texts, size: Size) -> Workload:
    """Tree of thought: 4 problems, fan-out 3, depth 2, 32 tokens a thought."""
    n, n_tokens = size(4), size(32)
    calls = n * sum(TOT_FAN_OUT**depth for depth in range(1, TOT_DEPTH + 1))
    inputs = tuple({"problem": texts.words(40), "n_tokens": n_tokens} for _ in range(n))
    return Workload("tree", think, inputs, calls, calls * n_tokens)


def _rag(texts: Texts, size: Size) -> Workload:
    """6 documents of about 400 tokens, 6 questions on each in a shuffled order, 32 tokens."""
    n, n_tokens = size(6, least=2), size(32)
    documents = [texts.words(size(350)) for _ in range(n)]
    order = texts.shuffled(n * n)
    inputs = tuple(
        {"document": documents[i % n], "question": texts.sentence(), "n_tokens": n_tokens}
        for i in order
    )
    return Workload("rag", look_up, inputs, n * n, n * n * n_tokens)


def _agents(texts: Texts, size: Size) -> Workload:
    """8 agents of 5 steps that share a page of tools of about 700 tokens, 32 tokens a step."""
    n, n_steps, n_tokens = size(8, least=2), size(5, least=2), size(32)
    tools = "You may use these tools.\n" + "".join(
        f"Tool {texts.number()}: {texts.sentence()} {texts.sentence()}\n" for _ in range(size(24))
    )
    inputs = tuple(
        {
            "tools": tools,
            "task": texts.words(20),
            "seen": [texts.words(20) for _ in range(n_steps)],
            "n_tokens": n_tokens,
        }
        for _ in range(n)
    )
    return Workload("agents", act, inputs, n * n_steps, n * n_steps * n_tokens)


def _chat(texts: Texts, size: Size) -> Workload:
    """8 conversations of 5 turns, 48 tokens a reply."""
    n, n_turns, n_tokens = size(8, least=2), size(5, least=2), size(48)
    rules = texts.words(50)
    inputs = tuple(
        {
            "rules": rules,
            "questions": [texts.words(20) for _ in range(n_turns)],
            "n_tokens": n_tokens,
        }
        for _ in range(n)
    )
    return Workload("chat", talk, inputs, n * n_turns, n * n_turns * n_tokens)


def _prefill(texts: Texts, size: Size) -> Workload:
    """One cold prompt of about 1200 tokens, one token drawn."""
    inputs = ({"prompt": texts.words(size(1090)), "n_tokens": 1},)
    return Workload("prefill", continue_text, inputs, 1, 1)


_SHAPES: dict[str, Callable[[Texts, Size], Workload]] = {
    "single": _single,
    "streams": _many,
    "few-shot": _few_shot,
    "tree": _tree,
    "rag": _rag,
    "agents": _agents,
    "chat": _chat,
    "prefill": _prefill,
}
NAMES = tuple(_SHAPES)


def make(name: str, *, seed: int = 0, repeat: int = 0, scale: float = 1.0) -> Workload:
    """The workload called `name`, with the text of that seed and repeat."""
    if name not in _SHAPES:
        raise InvalidRequest(f"no workload {name!r}; there are {', '.join(NAMES)}")
    if not 0 < scale <= 16:
        raise InvalidRequest(f"scale must be above 0 and at most 16, found {scale}")
    return _SHAPES[name](Texts(seed, name, repeat), Size(scale))


def about(name: str) -> str:
    """One line on a workload, at scale 1."""
    return (_SHAPES[name].__doc__ or "").strip()
