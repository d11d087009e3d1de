"""Real faults of other runtimes, reduced to small inputs: the cases by their numbers.

Each was once reported against a public project; here it runs through our whole stack without a
model (text front end, ports, scheduler, cache), or against the room it concerns. Wider tests of
the same kinds stand in the rooms.
"""

from __future__ import annotations

import asyncio

import pytest
from drive import Driver, job
from engines import fake_engine

import branchwork as bw
from branchwork.backend.config import SchedulerConfig
from branchwork.lang.client import Client, complete
from branchwork.lang.errors import BranchworkError, InvalidRequest, Unsupported
from branchwork.lang.request import Finish, Request, Text, Tokens
from branchwork.lang.sampling import Sampling
from branchwork.radix.cache import LeaseError, PrefixCache
from branchwork.radix.key import pack

WORDS = (*b"abcdefghij",)
ONE = Sampling(max_tokens=1)


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
@pytest.mark.parametrize("logprobs_from", [None, 0])
async def test_br_02_the_same_prompt_twice_with_and_without_prompt_logprobs(
    length: int, logprobs_from: int | None
) -> None:
    config = SchedulerConfig(page_size=16)
    with fake_engine(64, config, WORDS) as fake:
        ids = tuple(range(40, 40 + length))
        request = Request(segments=(Tokens(ids),), sampling=ONE, logprobs_from=logprobs_from)
        cold, warm = [await complete(fake.client, request) for _ in range(2)]
    assert warm.token_ids == cold.token_ids
    assert warm.prompt_logprobs == cold.prompt_logprobs
    if logprobs_from is None:
        assert warm.usage.cached_tokens == length - 1
    else:
        assert warm.prompt_logprobs is not None
        assert len(warm.prompt_logprobs) == length


def test_br_03_a_chain_of_prompts_each_one_token_longer() -> None:
    cache = PrefixCache(4000, 1)
    ids = list(range(3000))
    for n in range(1, 3001):
        key = pack(ids[:n])
        lease = cache.acquire(key)
        cache.grow(lease, n)
        cache.commit(lease, key)
        cache.release(lease)
    assert cache.peek(pack(ids)) == 2999
    cache.audit()
    assert repr(cache)
    assert cache.flush() == 3000
    stats = cache.stats()
    assert (stats.free, stats.cached, stats.nodes) == (4000, 0, 0)


def test_br_06_a_locked_handle_keeps_its_own_node() -> None:
    cache = PrefixCache(32, 1)

    def put(key: bytes) -> None:
        lease = cache.acquire(key)
        cache.grow(lease, len(key) // 4)
        cache.commit(lease, key)
        cache.release(lease)

    path = list(range(32))
    put(pack(path[:16]))
    put(pack(path))
    handle = cache.acquire(pack([*path, 99]))
    assert handle.cached == 32
    assert cache.flush() == 0
    assert cache.available == 0
    cache.release(handle)
    assert cache.available == 32
    assert cache.flush() == 32
    with pytest.raises(LeaseError):
        cache.release(handle)
    cache.audit()


def test_br_09_equal_rank_is_first_in_first_out_in_every_queue() -> None:
    driver = Driver(64, SchedulerConfig(page_size=4, step_tokens=8, max_running=1))
    driver.add(*(job(f"j{i}", [40 + i], 1) for i in range(5)))
    driver.run()
    assert sorted(driver.first_step, key=lambda n: driver.first_step[n]) == list(driver.tokens)
    cache = PrefixCache(4, 1)
    leases = [cache.acquire(pack([10 + i, 0])) for i in range(4)]
    for i, lease in enumerate(leases):
        cache.grow(lease, 1)
        cache.commit(lease, pack([10 + i]))
    for lease in leases:
        cache.release(lease)
    cache.grow(cache.acquire(pack([99, 0])), 1)
    assert [cache.peek(pack([10 + i, 0])) for i in range(4)] == [0, 1, 1, 1]


async def test_br_10_two_live_requests_with_one_id() -> None:
    def named(text: str, n: int) -> Request:
        sampling = Sampling(max_tokens=n, ignore_eos=True)
        return Request(segments=(Text(text),), sampling=sampling, id="job-1")

    with fake_engine(letters=WORDS) as fake:
        fake.runner.gate.clear()
        first = asyncio.create_task(complete(fake.client, named("first", 200)))
        await asyncio.sleep(0.01)
        with pytest.raises(BranchworkError, match="job-1"):
            await complete(fake.client, named("second", 5))
        fake.runner.gate.set()
        assert len((await first).token_ids) == 200
        assert len((await complete(fake.client, named("third", 5))).token_ids) == 5


async def test_br_12_a_seed_holds_whoever_shares_the_batch() -> None:
    def draw(seed: int | None) -> Request:
        sampling = Sampling(max_tokens=16, temperature=0.8, seed=seed, ignore_eos=True)
        return Request(segments=(Text("sample"),), sampling=sampling)

    async def together(client: Client, *requests: Request) -> list[Finish]:
        return await asyncio.gather(*(complete(client, r) for r in requests))

    with fake_engine(letters=WORDS) as fake:
        (alone,) = await together(fake.client, draw(42))
        for _ in range(2):
            for others in ([draw(None)], [draw(7)], [draw(7), draw(None)]):
                found = await together(fake.client, *others, draw(42))
                assert found[-1].token_ids == alone.token_ids
        free = await together(fake.client, draw(None), draw(None))
        assert free[0].token_ids != free[1].token_ids


@pytest.mark.parametrize("arguments", [{"choices": []}, {"choices": [""]}, {"regex": ""}])
def test_br_28_an_empty_constraint_answers_at_once_and_the_next_request_works(
    arguments: dict[str, object],
) -> None:
    @bw.program
    def empty(s: bw.State) -> None:
        s += "x" + bw.gen("a", **arguments)  # type: ignore[arg-type]

    @bw.program
    def normal(s: bw.State) -> None:
        s += "x" + bw.gen("a", max_tokens=3, ignore_eos=True)

    with fake_engine(letters=WORDS) as fake:
        with pytest.raises(BranchworkError) as caught:
            empty.run(engine=fake.client)
        reasons = (caught.value, caught.value.__cause__)
        assert any(isinstance(e, InvalidRequest | Unsupported) for e in reasons)
        assert len(normal.run(engine=fake.client)["a"]) == 3


@pytest.mark.parametrize("first", [None, ""])
def test_br_33_a_fork_before_any_text(first: str | None) -> None:
    @bw.program
    def forked(s: bw.State) -> None:
        if first is not None:
            s += first
        branches = s.fork(3)
        branches += lambda i: "xyz"[i] + bw.gen("a", max_tokens=4, ignore_eos=True)
        branches.join()
        s += "then" + bw.gen("b", max_tokens=4, ignore_eos=True)

    @bw.program
    def plain(s: bw.State, text: str) -> None:
        s += text + bw.gen("a", max_tokens=4, ignore_eos=True)

    with fake_engine(letters=WORDS) as fake:
        state = forked.run(engine=fake.client)
        alone = [plain.run(text=text, engine=fake.client)["a"] for text in ("x", "y", "z", "then")]
    assert state["a"] == alone[:3]
    assert state["b"] == alone[3]
    assert state.text() == "then" + state["b"]
