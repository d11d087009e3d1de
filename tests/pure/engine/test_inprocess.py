"""The in-process port: many loops, cancels, duplicate ids, close, and faults that stay small."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable

import pytest
from drive import job
from engines import Fake, fake_engine
from fake_runner import expected

from branchwork.backend.port import Flush, Job, Peek, Update
from branchwork.lang.client import complete
from branchwork.lang.errors import (
    DuplicateRequest,
    EngineClosed,
    InvalidRequest,
    PromptTooLong,
    StepFailed,
)
from branchwork.lang.request import Request, Text, Tokens
from branchwork.lang.sampling import Sampling
from branchwork.radix.key import pack

WORDS = (*b"abcdefghij",)


async def tokens_of(fake: Fake, one: Job) -> tuple[list[int], Update]:
    tokens: list[int] = []
    async for update in fake.port.submit(one):
        tokens += update.tokens
        last = update
    return tokens, last


async def right(fake: Fake, name: str, prompt: list[int], n: int = 5) -> None:
    tokens, last = await tokens_of(fake, job(name, prompt, n))
    assert tokens == expected(prompt, n, fake.runner.vocab)
    assert last.end is not None


def request(text: str, max_tokens: int, name: str | None = None) -> Request:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    return Request(segments=(Text(text),), sampling=sampling, id=name)


def test_callers_on_several_event_loops_share_one_engine() -> None:
    failures: list[BaseException] = []

    def work(fake: Fake, number: int) -> None:
        async def many() -> None:
            await asyncio.gather(*(right(fake, f"{number}.{i}", [number, i, 3]) for i in range(8)))

        try:
            asyncio.run(many())
        except BaseException as error:
            failures.append(error)

    with fake_engine() as fake:
        threads = [threading.Thread(target=work, args=(fake, i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert failures == []


async def test_closing_the_iterator_cancels_the_job() -> None:
    with fake_engine() as fake:
        updates = fake.port.submit(job("long", [1, 2, 3], 1000))
        await anext(updates)
        fake.runner.gate.clear()
        await updates.aclose()  # type: ignore[attr-defined]
        fake.runner.gate.set()
        stats = await fake.when_idle()
        assert stats.leased_pages == 0
        assert stats.computed_tokens < 1000


async def test_cancelling_the_task_that_waits_cancels_the_job() -> None:
    with fake_engine() as fake:
        fake.runner.gate.clear()
        task = asyncio.create_task(complete(fake.client, request("hello", 1000)))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.runner.gate.set()
        assert (await fake.when_idle()).leased_pages == 0


async def test_a_live_id_is_refused_the_first_goes_on_and_the_third_works() -> None:
    """BR-10 at the text level."""
    with fake_engine(letters=WORDS) as fake:
        fake.runner.gate.clear()
        first = asyncio.create_task(complete(fake.client, request("first", 200, "job-1")))
        await asyncio.sleep(0.01)
        with pytest.raises(DuplicateRequest, match="job-1"):
            await complete(fake.client, request("second", 5, "job-1"))
        fake.runner.gate.set()
        finish = await first
        assert len(finish.token_ids) == 200
        third = await complete(fake.client, request("third", 5, "job-1"))
        assert len(third.token_ids) == 5


async def test_what_cannot_fit_is_refused_alone() -> None:
    with fake_engine(n_pages=8, letters=WORDS) as fake:
        with pytest.raises(PromptTooLong, match="the pool has 8"):
            await complete(fake.client, request("x" * 40, 5))
        assert (await complete(fake.client, request("x" * 20, 5))).reason == "length"


@pytest.mark.parametrize("ids", [(1, 259), (-1, 2), (2**33,)])
async def test_ids_the_model_does_not_have_are_refused_alone(ids: tuple[int, ...]) -> None:
    with fake_engine(letters=WORDS) as fake:
        with pytest.raises(InvalidRequest, match="token ids must be from 0 to 258"):
            await complete(fake.client, Request(segments=(Tokens(ids),)))
        assert (await complete(fake.client, request("hello", 5))).reason == "length"


async def test_a_failed_step_fails_its_calls_and_the_next_one_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with fake_engine(letters=WORDS) as fake:
        fake.runner.fail_steps = {0}
        with caplog.at_level(logging.CRITICAL, "branchwork.engine"), pytest.raises(StepFailed):
            await complete(fake.client, request("hello", 5))
        assert (await complete(fake.client, request("hello", 5))).reason == "length"


@pytest.mark.parametrize("method", ["plan", "apply"])
async def test_a_broken_scheduler_drops_the_cache_not_the_process(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_engine(letters=WORDS) as fake:
        whole: Callable[..., object] = getattr(fake.scheduler, method)
        breaks = iter([True])

        def broken(*args: object) -> object:
            if fake.scheduler.stats().running == 3 and next(breaks, False):
                raise AssertionError("an invariant does not hold")
            return whole(*args)

        monkeypatch.setattr(fake.scheduler, method, broken)
        with caplog.at_level(logging.CRITICAL, "branchwork.engine"):
            fake.runner.gate.clear()
            calls = [
                asyncio.create_task(complete(fake.client, request(f"hello {i}", 200)))
                for i in range(3)
            ]
            await asyncio.sleep(0.01)
            fake.runner.gate.set()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all("had to be dropped" in str(result) for result in results)
            await right(fake, "next", [1, 2, 3])


async def test_a_leaked_page_is_noticed_when_idle_and_the_cache_starts_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with fake_engine() as fake:
        fake.cache.acquire(pack([9, 9, 9]), "leak")
        fake.cache.grow(fake.cache.acquire(pack([9, 9, 9]), "leak"), 3)
        with caplog.at_level(logging.CRITICAL, "branchwork.engine"):
            await right(fake, "one", [1, 2, 3])
            assert (await fake.when_idle()).leased_pages == 0
            await right(fake, "two", [1, 2, 3])


async def test_peek_and_flush_between_steps() -> None:
    with fake_engine() as fake:
        await right(fake, "one", [1, 2, 3, 4, 5, 6])
        assert (await fake.port.control(Peek(prompt=pack([1, 2, 3, 4, 5, 6, 7])))).tokens == 6
        reply = await fake.port.control(Flush())
        assert reply.pages > 0
        assert reply.stats.cached_pages == 0
        assert (await fake.port.control(Peek(prompt=pack([1, 2, 3, 4, 5, 6, 7])))).tokens == 0


async def test_close_ends_live_calls_with_a_reason() -> None:
    with fake_engine(letters=WORDS) as fake:
        fake.runner.gate.clear()
        live = asyncio.create_task(complete(fake.client, request("hello", 1500)))
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(fake.client.aclose())
        await asyncio.sleep(0.02)
        fake.runner.gate.set()
        await closing
        with pytest.raises(EngineClosed):
            await live
        with pytest.raises(EngineClosed, match="make a new one"):
            await complete(fake.client, request("late", 5))
        await fake.client.aclose()  # twice is fine


def test_a_loop_that_goes_away_takes_its_jobs_with_it() -> None:
    with fake_engine() as fake:
        loop = asyncio.new_event_loop()
        updates = fake.port.submit(job("orphan", [1, 2, 3], 1000))
        loop.run_until_complete(anext(updates))
        loop.close()
        assert asyncio.run(fake.when_idle()).leased_pages == 0
        del updates


async def test_seeded_calls_do_not_depend_on_their_batch() -> None:
    """BR-12."""

    def draw(seed: int | None, text: str = "hello") -> Request:
        sampling = Sampling(max_tokens=16, temperature=0.8, seed=seed, ignore_eos=True)
        return Request(segments=(Text(text),), sampling=sampling)

    with fake_engine(letters=WORDS) as fake:
        alone = (await complete(fake.client, draw(42))).token_ids
        for others in ([draw(None)], [draw(7)], [draw(7, "other"), draw(None)]):
            for batch in ([draw(42), *others], [*others, draw(42)]):
                found = await asyncio.gather(*(complete(fake.client, r) for r in batch))
                assert found[batch.index(draw(42))].token_ids == alone
        unseeded = [(await complete(fake.client, draw(None))).token_ids for _ in range(2)]
        assert unseeded[0] != unseeded[1]


async def test_threads_switch_sooner_while_an_engine_computes_and_as_before_after() -> None:
    before = sys.getswitchinterval()
    with fake_engine(letters=WORDS) as fake:
        fake.runner.gate.clear()
        live = asyncio.create_task(complete(fake.client, request("hello", 5)))
        await asyncio.sleep(0.05)
        during = sys.getswitchinterval()
        fake.runner.gate.set()
        await live
        await fake.when_idle()
    assert during <= 1e-4 < before
    assert sys.getswitchinterval() == before
