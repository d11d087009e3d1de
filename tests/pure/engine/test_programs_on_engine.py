"""Random programs through the whole stack but the tensors: language, text, ports, scheduler, cache.

The model is scripted (`fake_runner`), so a wrong page gives a wrong letter. The naive interpreter
asks the script directly; results are equal and afterwards every page is free or cached.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import naive
from byte_tokenizer import IM_END, byte_tokenizer
from engines import LETTERS, fake_engine
from fake_runner import chain_all, expected, token_logprob
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import program_bodies

from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.select import bare_prompt
from branchwork.lang.errors import ProgramError
from branchwork.lang.request import Delta, Request, Text


class Refusing:
    """Refuses a call whose prompt ends in `naive.FAIL`, as the naive interpreter expects."""

    def __init__(self, inner: Frontend) -> None:
        self.inner = inner

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        last = request.segments[-1]
        if isinstance(last, Text) and last.text.endswith(naive.FAIL):
            raise naive.Refused("asked to fail")
        async for delta in self.inner.stream(request):
            yield delta

    async def aclose(self) -> None:
        await self.inner.aclose()


class EngineOracle:
    """What the engine must answer, from the script alone."""

    def __init__(self, front: Frontend) -> None:
        self._front = front

    def _ids(self, prompt: tuple[Any, ...]) -> list[int]:
        return list(self._front.prepare(Request(segments=prompt)).prompt.ids)

    def draw(self, prompt: tuple[Any, ...], ask: naive.Ask, seed: int) -> str:
        last = prompt[-1]
        if isinstance(last, Text) and last.text.endswith(naive.FAIL):
            raise naive.Refused("asked to fail")
        sampling = (0.9 if ask.warm else 0.0, seed)
        text = ""
        for token in expected(self._ids(prompt), ask.max_tokens, LETTERS, sampling):
            if token == IM_END:
                break
            text += chr(token)
            ends = [text.find(stop) for stop in ask.stop if stop in text]
            if ends:
                return text[: min(ends)]
        return text

    def choose(self, prompt: tuple[Any, ...], pick: naive.Pick) -> str:
        bare = bare_prompt(byte_tokenizer())
        return naive.winner(pick, _scores(self._ids(prompt), pick), _scores(bare, pick))


def _scores(ids: list[int], pick: naive.Pick) -> list[list[float]]:
    return [
        [token_logprob(chain_all([*ids, *data[:i]]), token) for i, token in enumerate(data)]
        for data in (choice.encode() for choice in pick.choices)
    ]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=program_bodies(), n_pages=st.sampled_from([1500, 300]))
def test_a_program_on_the_engine_gives_what_the_naive_interpreter_gives(
    body: naive.Body, n_pages: int
) -> None:
    program, states = naive.program_of(body)
    with fake_engine(n_pages) as fake:
        try:
            program.run(engine=Refusing(fake.client))
        except ProgramError as error:
            outcome = naive.Outcome(error=naive.error_of(error))
        else:
            outcome = naive.outcome_of(states)
    assert outcome == naive.naive(body, EngineOracle(fake.client))
