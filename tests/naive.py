"""Small programs as values, and two ways to run them: as a real program, and naively in order.

`play` is the body of a real program. `naive` walks the same value with no laziness, no tasks and no
cache, asking an `Oracle`. Both give an `Outcome`; a test compares the two. The scripted mock's
oracle is here, other clients bring their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from branchwork.lang import choose
from branchwork.lang import dsl as bw
from branchwork.lang.calls import derive_seed
from branchwork.lang.errors import ProgramError
from branchwork.lang.mock import cut, default_scores, default_text, render, settle
from branchwork.lang.program import Program
from branchwork.lang.request import Request, RoleEnd, RoleStart, Text
from branchwork.lang.sampling import Sampling
from branchwork.lang.settings import Settings
from branchwork.lang.state import State

SEED = 7
FAIL = "<fail>"
"""A prompt that ends so makes the mock refuse the call."""


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Ask:
    """`lead` (never empty) and then a gen. `warm` draws at a temperature, with the run's seed."""

    lead: str
    name: str
    max_tokens: int = 8
    stop: tuple[str, ...] = ()
    warm: bool = False


@dataclass(frozen=True)
class Pick:
    lead: str
    name: str
    choices: tuple[str, ...]
    method: str = "total"


@dataclass(frozen=True)
class Quote:
    """Read the name now and append it, if it is text; nothing if it is not bound."""

    name: str


@dataclass(frozen=True)
class Refer:
    """Append the name's text lazily, if it is text; nothing if it is not bound."""

    name: str


@dataclass(frozen=True)
class Put:
    name: str
    value: str


@dataclass(frozen=True)
class Turn:
    role: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Split:
    """Fork, one body a branch; the parent goes on with `meanwhile`; some branches are cancelled;
    then join, if wanted, and once more after `again` (a body a branch)."""

    bodies: tuple[tuple[Any, ...], ...]
    meanwhile: tuple[Any, ...] = ()
    cancelled: frozenset[int] = frozenset()
    join: bool = True
    again: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class Scratch:
    body: tuple[Any, ...]


Body = tuple[Any, ...]


@dataclass
class Outcome:
    """`branches`: (names and values, what was said) of all that were not cancelled, in the order
    they were made. `error`: the name of the call whose failure the run raised."""

    branches: list[tuple[dict[str, Any], tuple[Any, ...]]] = field(default_factory=list)
    error: str | None = None


# -- as a real program ------------------------------------------------------------------------


@dataclass
class _Player:
    states: list[State] = field(default_factory=list)

    def walk(self, s: State, body: Body, lists: set[str]) -> None:
        for node in body:
            match node:
                case Say(text):
                    s += text
                case Ask():
                    lists.discard(node.name)
                    s += node.lead + bw.gen(
                        node.name,
                        max_tokens=node.max_tokens,
                        stop=node.stop,
                        temperature=0.9 if node.warm else None,
                    )
                case Pick():
                    lists.discard(node.name)
                    s += node.lead + bw.select(node.name, node.choices, method=node.method)
                case Quote(name):
                    if name in s and isinstance(value := s[name], str):
                        s += value
                case Refer(name):
                    if name in s and name not in lists:
                        s += bw.ref(name)
                case Put(name, value):
                    lists.discard(name)
                    s.set(name, value)
                case Turn(role, inner):
                    with s.role(role):
                        self.walk(s, inner, lists)
                case Scratch(inner):
                    with s.copy() as t:
                        self.states.append(t)
                        self.walk(t, inner, set(lists))
                case Split():
                    self._split(s, node, lists)

    def _split(self, s: State, node: Split, lists: set[str]) -> None:
        branches = s.fork(len(node.bodies))
        self.states.extend(branches)
        notes = [set(lists) for _ in branches]
        for twig, body, note in zip(branches, node.bodies, notes, strict=True):
            self.walk(twig, body, note)
        self.walk(s, node.meanwhile, lists)
        for index in sorted(node.cancelled):
            branches[index].cancel()
        if node.join:
            lists.update(branches.join())
        if node.again:
            for index, body in enumerate(node.again):
                if index not in node.cancelled:
                    self.walk(branches[index], body, notes[index])
            lists.update(branches.join())


def program_of(body: Body) -> tuple[Program, list[State]]:
    """A program that plays `body`, and the list its states will be put in, the root first."""
    player = _Player()

    def play(s: State) -> None:
        player.states.append(s)
        player.walk(s, body, set())

    return Program(play, Settings(seed=SEED)), player.states


def outcome_of(states: list[State]) -> Outcome:
    """What a finished run came to."""
    kept = [state for state in states if not state.cancelled]
    return Outcome(
        [({n: s[n] for n in s.names()}, joined(s._branch.said)) for s in kept],
    )


# -- naively ----------------------------------------------------------------------------------


class Refused(Exception):
    """The oracle refuses a call, as the client would."""


class Oracle(Protocol):
    """A model without a program round it. `prompt`: text coalesced, roles as markers."""

    def draw(self, prompt: tuple[Any, ...], ask: Ask, seed: int) -> str: ...

    def choose(self, prompt: tuple[Any, ...], pick: Pick) -> str: ...


class MockOracle:
    """What `MockClient(script)` answers, for prompts that do not end in FAIL."""

    def draw(self, prompt: tuple[Any, ...], ask: Ask, seed: int) -> str:
        sampling = Sampling(temperature=0.9 if ask.warm else 0.0, seed=seed)
        request = Request(segments=prompt, sampling=sampling)
        text = script(render(settle(request)), request)
        return cut(text, ask.stop, ask.max_tokens)[0]

    def choose(self, prompt: tuple[Any, ...], pick: Pick) -> str:
        text = render(settle(Request(segments=prompt)))
        return winner(
            pick,
            [default_scores(text, choice) for choice in pick.choices],
            [default_scores("", choice) for choice in pick.choices],
        )


def winner(pick: Pick, scores: Sequence[Sequence[float]], bare: Sequence[Sequence[float]]) -> str:
    """The choice that wins with these log-probabilities a token, after the prompt and without."""
    n_bytes = [len(choice.encode()) for choice in pick.choices]
    priors = [math.fsum(logprobs) for logprobs in bare]
    return pick.choices[choose.pick(pick.method, scores, n_bytes, priors)]


def script(prompt: str, request: Request) -> str:
    """The mock's script of these tests."""
    if prompt.endswith(FAIL):
        raise Refused("asked to fail")
    return default_text(prompt, request)


@dataclass(frozen=True)
class _Failed:
    call: str


class _Raised(Exception):
    """The body is told of a failed call."""


@dataclass
class _Twig:
    path: tuple[int, ...] = ()
    label: str = ""
    said: list[Any] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    own: dict[str, None] = field(default_factory=dict)
    fresh: dict[str, None] = field(default_factory=dict)
    error: str | None = None
    n_calls: int = 0
    n_forks: int = 0
    cancelled: bool = False
    failed_here: bool = False

    def bind(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.own[name] = self.fresh[name] = None


@dataclass
class _Walker:
    oracle: Oracle
    twigs: list[_Twig] = field(default_factory=list)
    failures: list[_Twig] = field(default_factory=list)

    def walk(self, twig: _Twig, body: Body) -> None:
        for node in body:
            match node:
                case Say(text):
                    twig.said.append(Text(text))
                case Ask() | Pick():
                    self._call(twig, node)
                case Quote(name):
                    value = twig.values.get(name)
                    if isinstance(value, _Failed):
                        raise _Raised(value.call)
                    if isinstance(value, str):
                        twig.said.append(Text(value))
                case Refer(name):
                    value = twig.values.get(name)
                    if isinstance(value, str):
                        twig.said.append(Text(value))
                case Put(name, value):
                    twig.bind(name, value)
                case Turn(role, inner):
                    twig.said.append(RoleStart(role))
                    self.walk(twig, inner)
                    twig.said.append(RoleEnd(role))
                case Scratch(inner):
                    (child,) = self._fork(twig, 1, "[copy]")
                    self.walk(child, inner)
                case Split():
                    self._split(twig, node)

    def _call(self, twig: _Twig, node: Ask | Pick) -> None:
        seed = derive_seed(SEED, twig.path, twig.n_calls)
        twig.n_calls += 1
        twig.said.append(Text(node.lead))
        if twig.error is None:
            try:
                prompt = joined(twig.said)
                if isinstance(node, Ask):
                    value = self.oracle.draw(prompt, node, seed)
                else:
                    if node.lead.endswith(FAIL):
                        raise AssertionError("only gens are asked to fail")
                    value = self.oracle.choose(prompt, node)
            except Refused:
                twig.error = node.name + twig.label
                self.failures.append(twig)
            else:
                twig.said.append(Text(value))
        twig.bind(node.name, value if twig.error is None else _Failed(twig.error))

    def _fork(self, twig: _Twig, n: int, label: str = "") -> list[_Twig]:
        children = [
            _Twig(
                path=(*twig.path, twig.n_forks, index),
                label=twig.label + (label or f"[{index}]"),
                said=list(twig.said),
                values=dict(twig.values),
                error=twig.error,
            )
            for index in range(n)
        ]
        twig.n_forks += 1
        self.twigs.extend(children)
        return children

    def _split(self, twig: _Twig, node: Split) -> None:
        children = self._fork(twig, len(node.bodies))
        for child, body in zip(children, node.bodies, strict=True):
            self.walk(child, body)
        self.walk(twig, node.meanwhile)
        for index in node.cancelled:
            for each in self.twigs:
                if each.path[: len(children[index].path)] == children[index].path:
                    each.cancelled = True
        if node.join:
            self._join(twig, children)
        if node.again:
            for child, body in zip(children, node.again, strict=True):
                if not child.cancelled:
                    self.walk(child, body)
            self._join(twig, children)

    def _join(self, twig: _Twig, children: list[_Twig]) -> None:
        live = [child for child in children if not child.cancelled]
        for child in live:
            if child.error is not None:
                raise _Raised(child.error)
        for name in {name: None for child in live for name in child.fresh}:
            twig.bind(
                name,
                [c.values[name] if not c.cancelled and name in c.own else None for c in children],
            )
        for child in children:
            child.fresh.clear()


def naive(body: Body, oracle: Oracle) -> Outcome:
    """Run `body` in order, one call after the other."""
    walker = _Walker(oracle)
    root = _Twig()
    walker.twigs.append(root)
    try:
        walker.walk(root, body)
    except _Raised as raised:
        return Outcome(error=str(raised))
    untold = [twig.error for twig in walker.failures if not twig.cancelled]
    if root.error is not None or untold:
        return Outcome(error=root.error or untold[0])
    kept = [twig for twig in walker.twigs if not twig.cancelled]
    return Outcome([(twig.values, joined(twig.said)) for twig in kept])


def joined(said: list[Any]) -> tuple[Any, ...]:
    """Adjacent text as one piece, empty text dropped."""
    found: list[Any] = []
    for piece in said:
        if isinstance(piece, Text) and found and isinstance(found[-1], Text):
            found[-1] = Text(found[-1].text + piece.text)
        elif not isinstance(piece, Text) or piece.text:
            found.append(piece)
    return tuple(found)


def error_of(error: ProgramError) -> str:
    """The failed call's name as `Outcome.error` has it."""
    return error.call
