"""Sampling from a request to its tokens, on a tiny real model behind the real engine."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
from byte_tokenizer import ENDOFTEXT, IM_END, byte_tokenizer
from tiny import SPEC, tiny_runner

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.inprocess import InProcessPort
from branchwork.backend.sched.scheduler import Scheduler
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.stops import watch_factory
from branchwork.lang.client import complete
from branchwork.lang.errors import InvalidRequest
from branchwork.lang.request import Delta, Finish, Request, Text, Tokens
from branchwork.lang.sampling import Sampling, bias_of
from branchwork.radix.cache import PrefixCache

PROMPT = tuple(b"a prompt of some length")


@contextlib.contextmanager
def engine(n_pages: int = 256) -> Iterator[tuple[Frontend, Scheduler]]:
    tokenizer = byte_tokenizer()
    config = SchedulerConfig(page_size=4, max_running=16, step_tokens=64, reserve_tokens=0)
    scheduler = Scheduler(PrefixCache(n_pages, 4), config, watch_factory(tokenizer))
    port = InProcessPort(scheduler, tiny_runner(n_pages))
    try:
        yield Frontend(port, tokenizer, ChatFormat.of(tokenizer), 512, SPEC.vocab), scheduler
    finally:
        port.close()


def ask(prompt: tuple[int, ...] = PROMPT, **options: Any) -> Request:
    given = {"max_tokens": 16, "ignore_eos": True} | options
    return Request(segments=(Tokens(prompt),), sampling=Sampling(**given))


def tokens(client: Frontend, *requests: Request) -> list[tuple[int, ...]]:
    async def all_at_once() -> list[Finish]:
        return await asyncio.gather(*(complete(client, request) for request in requests))

    return [finish.token_ids for finish in asyncio.run(all_at_once())]


SEEDED = {"temperature": 0.8, "seed": 42}
RULES: list[dict[str, Any]] = [
    {},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"logit_bias": ((5, 2.0), (6, -2.0)), "min_tokens": 9, "stop_token_ids": (7,)},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_a_seed_holds_whoever_shares_the_batch(rules: dict[str, Any]) -> None:
    """BR-12, for each family of rules."""
    with engine() as (client, _):
        x = ask(**SEEDED, **rules)
        others = [ask(temperature=0.8), ask(temperature=0.8, seed=7), ask((5, 6), temperature=1.0)]
        (alone,) = tokens(client, x)
        for _again in range(2):
            for other in others:
                assert tokens(client, x, other)[0] == alone
                assert tokens(client, other, x)[1] == alone
        assert tokens(client, *others * 5, x)[-1] == alone
        long = ask(temperature=0.8, max_tokens=64)
        assert len(set(tokens(client, long, long))) == 2


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_cold_warm_and_retracted_draw_the_same(rules: dict[str, Any]) -> None:
    requests = [
        ask((i, *PROMPT), max_tokens=40, temperature=0.8, seed=i, **rules) for i in range(5)
    ]
    with engine(512) as (client, scheduler):
        roomy = [tokens(client, request)[0] for request in requests]
        assert [tokens(client, request)[0] for request in requests] == roomy
        assert scheduler.counters.retractions == 0
    with engine(36) as (client, scheduler):
        assert tokens(client, *requests) == roomy
        assert scheduler.counters.retractions > 0 or rules.get("stop_token_ids")


def test_a_bias_out_of_the_vocabulary_is_refused_while_others_stream_on() -> None:
    """BR-15."""
    with engine() as (client, _):
        (undisturbed,) = tokens(client, ask(max_tokens=60))

        async def stream() -> list[Delta]:
            return [delta async for delta in client.stream(ask(max_tokens=60))]

        async def both() -> list[Delta]:
            streaming = asyncio.create_task(stream())
            await asyncio.sleep(0.01)
            for bad in (str(SPEC.vocab), "99999999", "-1"):
                with pytest.raises(InvalidRequest, match=rf"logit_bias: {bad} is no token"):
                    await complete(client, ask(logit_bias=bias_of({bad: 5})))
            with pytest.raises(InvalidRequest, match="'x'"):
                bias_of({"x": 1})
            return await streaming

        deltas = asyncio.run(both())
        assert tuple(i for delta in deltas for i in delta.ids) == undisturbed
        first = undisturbed[0]
        same, other = tokens(client, ask(logit_bias=bias_of({})), ask(logit_bias=((first, -100),)))
        assert same[0] == first and other[0] != first


def test_greedy_is_untouched_by_filters_and_moved_by_penalties() -> None:
    with engine() as (client, _):
        plain, filtered, mild, harsh = tokens(
            client,
            ask(),
            ask(top_k=1, top_p=0.01, min_p=0.9, seed=3),
            ask(repetition_penalty=1.0, presence_penalty=0.0),
            ask(presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=100.0),
        )
        assert plain == filtered == mild
        assert len(set(harsh)) == len(harsh) == 16  # nothing is said twice
        assert not set(harsh) & set(PROMPT)


def test_no_end_comes_before_the_least_number_of_tokens() -> None:
    with engine() as (client, _):
        eager = {"ignore_eos": False, "logit_bias": ((IM_END, 100.0), (ENDOFTEXT, 90.0), (9, 95.0))}
        (at_once,) = tokens(client, ask(**eager))
        held, by_id = tokens(
            client, ask(min_tokens=5, **eager), ask(min_tokens=5, stop_token_ids=(9,), **eager)
        )
        assert at_once == (IM_END,)
        assert held == (*(9,) * 5, IM_END)  # the next best, until the end may come
        assert len(by_id) == 6 and by_id[-1] == IM_END and not {9, IM_END} & set(by_id[:-1])


def test_logprobs_of_the_drawn_and_the_likeliest_agree() -> None:
    with engine() as (client, _):
        request = ask(logprobs=True, top_logprobs=5, max_tokens=4, logit_bias=((3, 1.0),))
        finish = asyncio.run(complete(client, request))
        assert finish.logprobs is not None and finish.top_logprobs is not None
        assert len(finish.logprobs) == len(finish.top_logprobs) == len(finish.token_ids) == 4
        rescored = Request(
            segments=(Tokens(PROMPT + finish.token_ids, (Text("all of it"),)),),
            sampling=Sampling(max_tokens=0),
            logprobs_from=len(PROMPT),
        )
        again = asyncio.run(complete(client, rescored)).prompt_logprobs
        assert again is not None
        rows = zip(finish.token_ids, finish.logprobs, finish.top_logprobs, again, strict=True)
        for token, logprob, top, score in rows:
            assert score is not None and math.isclose(logprob, score, abs_tol=1e-4)
            values = [one.logprob for one in top]
            assert len(top) == 5 and values == sorted(values, reverse=True)
            assert {one.id: one.logprob for one in top}.get(token, logprob) == logprob
