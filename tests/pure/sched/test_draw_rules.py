"""What a plan tells the sampler of a sequence: counts, bans and what was asked, as ints."""

from __future__ import annotations

import pytest
from drive import Driver, job
from fake_runner import expected_of

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.port import Rules
from branchwork.backend.sched.plan import Draw, Past

PENALTIES = Rules(repetition_penalty=1.2, presence_penalty=0.5, temperature=1.0)


def draws_of(driver: Driver) -> list[Draw]:
    """The draw of every step of the only job, to its end."""
    found = []
    while (plan := driver.scheduler.plan()) is not None:
        found += [row.draw for row in plan.rows if row.draw is not None]
        driver._collect(
            driver.scheduler.apply(plan, driver.runner.sample(driver.runner.forward(plan)))
        )
    return found


def small(**more: object) -> SchedulerConfig:
    fields: dict[str, object] = {"page_size": 4, "step_tokens": 64, "max_running": 8, **more}
    return SchedulerConfig(**fields)  # type: ignore[arg-type]


def test_without_penalties_a_plan_carries_no_past() -> None:
    driver = Driver(64, small())
    driver.add(job("a", [1, 2, 1], 4))
    assert [draw.past for draw in draws_of(driver)] == [Past()] * 4


def test_repetition_counts_the_prompt_and_the_others_only_what_was_drawn() -> None:
    driver = Driver(64, small(chunk_tokens=2), vocab=[7])
    driver.add(job("a", [1, 2, 1], 3, rules=PENALTIES))
    seen = [(1, 2), (1, 2, 7), (1, 2, 7)]
    drawn = [(), ((7, 1),), ((7, 2),)]
    assert [draw.past for draw in draws_of(driver)] == list(map(Past, seen, drawn))


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_each_penalty_alone_gets_what_it_needs_and_no_more(name: str) -> None:
    driver = Driver(64, small(), vocab=[7])
    driver.add(job("a", [1], 2, rules=Rules(**{name: 1.5})))
    last = draws_of(driver)[-1].past
    repeats = name == "repetition_penalty"
    assert last == (Past(seen=(1, 7)) if repeats else Past(drawn=((7, 1),)))


@pytest.mark.parametrize("ends_with", ["end id", "stop"])
def test_nothing_ends_a_sequence_before_its_least_number_of_tokens(ends_with: str) -> None:
    driver = Driver(64, small(), vocab=[7, 8])
    what = {"end_ids": (8,)} if ends_with == "end id" else {"stop": ("7", "8")}
    driver.add(job("a", [1, 2], 20, min_tokens=5, **what))
    driver.run()
    tokens = driver.tokens["a"]
    assert driver.ends["a"].reason == "stop"
    if ends_with == "end id":
        assert tokens[:5] == [7] * 5 and tokens[-1] == 8
    else:
        assert len(tokens) == 6


def test_end_ids_are_banned_exactly_until_then() -> None:
    driver = Driver(64, small())
    driver.add(job("a", [1, 2], 4, min_tokens=2, end_ids=(60, 61)))
    assert [draw.banned for draw in draws_of(driver)] == [(60, 61), (60, 61), (), ()]


def test_counts_and_bans_survive_retraction() -> None:
    driver = Driver(14, small(reserve_tokens=0))
    jobs = [
        job(f"j{i}", [i] * 5, 30, seed=i, rules=PENALTIES, min_tokens=30, end_ids=(3, 4))
        for i in range(3)
    ]
    driver.add(*jobs)
    driver.run()
    assert driver.scheduler.counters.retractions > 0
    for one in jobs:
        assert driver.tokens[one.id] == expected_of(one, driver.vocab)


def test_the_likeliest_come_with_each_token() -> None:
    driver = Driver(64, small())
    driver.add(job("a", [1, 2], 2, top_logprobs=3))
    plan = driver.scheduler.plan()
    assert plan is not None
    (update,) = driver.scheduler.apply(plan, driver.runner.sample(driver.runner.forward(plan)))
    assert update.top_logprobs == (((0, -1.0), (1, -2.0), (2, -3.0)),)
    assert update.logprobs == ()
