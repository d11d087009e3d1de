"""The scheduler's promises one by one, on lists of ints."""

from __future__ import annotations

import pytest
from drive import Driver, job, trie
from fake_runner import expected

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.sched.budget import pages_for
from branchwork.lang.errors import DuplicateRequest, InvalidRequest, Overloaded, PromptTooLong

PREFIX = list(range(40)) * 5  # 200 tokens


def small(**more: object) -> SchedulerConfig:
    fields: dict[str, object] = {"page_size": 4, "step_tokens": 64, "max_running": 8, **more}
    return SchedulerConfig(**fields)  # type: ignore[arg-type]


def test_pages_cover_a_token_count() -> None:
    assert [pages_for(n, 16) for n in (1, 16, 17, 32)] == [1, 1, 2, 2]


# -- sharing ------------------------------------------------------------------------------------


def test_cold_twins_wait_for_one_prefill_and_hit() -> None:
    driver = Driver(256, small())
    driver.add(*(job(f"q{i}", [*PREFIX, 41 + i, 7], 2) for i in range(6)))
    driver.run()
    assert driver.scheduler.counters.computed_tokens <= 200 + 6 * 2 + 6
    assert driver.ends["q5"].cached_tokens == 200


def test_identical_twins_compute_one_token_each_after_the_first() -> None:
    driver = Driver(256, small())
    driver.add(*(job(f"q{i}", PREFIX, 1) for i in range(5)))
    driver.run()
    assert driver.scheduler.counters.computed_tokens == 200 + 4


def test_without_deferral_every_twin_prefills() -> None:
    driver = Driver(256, small(defer_twins=False, step_tokens=1000))
    driver.add(*(job(f"q{i}", PREFIX, 1) for i in range(3)))
    driver.run()
    assert driver.scheduler.counters.computed_tokens == 600


def test_twins_of_a_cancelled_prefill_are_not_forgotten() -> None:
    driver = Driver(256, small(chunk_tokens=8))
    driver.add(job("first", PREFIX, 1), job("second", PREFIX, 1))
    driver.step()
    driver.cancel("first")
    driver.run()
    assert driver.tokens["second"] == expected(PREFIX, 1, driver.vocab)


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
@pytest.mark.parametrize("logprobs_from", [None, 0])
def test_the_same_prompt_twice_is_served_but_for_one_token(
    length: int, logprobs_from: int | None
) -> None:
    """BR-02: prompt log-probabilities cap the match, they do not break it."""
    driver = Driver(64, small(page_size=16))
    prompt = list(range(length))
    driver.add(job("cold", prompt, 1, logprobs_from=logprobs_from))
    driver.run()
    driver.add(job("warm", prompt, 1, logprobs_from=logprobs_from))
    driver.run()
    assert driver.tokens["warm"] == driver.tokens["cold"]
    cold, warm = driver.ends["cold"], driver.ends["warm"]
    assert warm.prompt_logprobs == cold.prompt_logprobs
    assert len(warm.prompt_logprobs) == (0 if logprobs_from is None else length - 1)
    assert warm.cached_tokens == (length - 1 if logprobs_from is None else 0)


def test_logprobs_from_the_middle_reuse_what_lies_before() -> None:
    driver = Driver(64, small(page_size=16))
    prompt = list(range(40))
    driver.add(job("cold", prompt, 1))
    driver.run()
    driver.add(job("warm", prompt, 1, logprobs_from=30))
    driver.run()
    assert driver.ends["warm"].cached_tokens == 29
    assert len(driver.ends["warm"].prompt_logprobs) == 10


# -- order --------------------------------------------------------------------------------------


def start_order(driver: Driver) -> list[str]:
    return sorted(driver.first_step, key=lambda name: driver.first_step[name])


def test_the_longest_cached_prefix_goes_first() -> None:
    driver = Driver(256, small(max_running=1))
    driver.add(job("warmup", PREFIX, 1))
    driver.run()
    driver.add(job("cold", [45] * 30, 1), job("warm", [*PREFIX, 49], 1))
    driver.run()
    assert start_order(driver) == ["warmup", "warm", "cold"]


def test_ties_are_first_in_first_out() -> None:
    """BR-09: equal rank never compares requests, and keeps their order."""
    driver = Driver(256, small(max_running=1))
    names = [f"j{i}" for i in range(9)]
    driver.add(*(job(name, [40 + i], 1) for i, name in enumerate(names)))
    driver.run()
    assert start_order(driver) == names


def test_a_cold_request_is_overtaken_a_bounded_number_of_times() -> None:
    driver = Driver(256, small(max_running=1, max_overtakes=5))
    driver.add(job("warmup", PREFIX, 1))
    driver.run()
    driver.add(job("cold", [45] * 30, 1))

    def keep_the_hits_coming(step: int) -> None:
        if step < 60:
            driver.add(job(f"warm{step}", [*PREFIX, step % 7], 1))

    driver.run(keep_the_hits_coming)
    assert start_order(driver).index("cold") == 1 + 5


def test_decodes_go_on_while_a_long_prompt_is_prefilled_in_chunks() -> None:
    driver = Driver(256, small(chunk_tokens=8))
    driver.add(job("talk", [1, 2, 3], 30))
    driver.step()
    driver.add(job("long", PREFIX, 1))
    for _ in range(10):
        before = len(driver.tokens["talk"])
        driver.step()
        assert len(driver.tokens["talk"]) == before + 1
    assert not driver.tokens["long"]


# -- pressure -----------------------------------------------------------------------------------


def test_retracted_sequences_resume_exactly_and_the_oldest_never_is() -> None:
    driver = Driver(20, small(max_running=4, reserve_tokens=8))
    driver.add(*(job(f"j{i}", [i] * 5, 30) for i in range(4)))
    running_first = []

    def note(_step: int) -> None:
        first = next(iter(driver.scheduler._running), None)
        running_first.append(first)

    driver.run(note)
    assert driver.scheduler.counters.retractions > 0
    for i in range(4):
        assert driver.tokens[f"j{i}"] == expected([i] * 5, 30, driver.vocab)
    # The oldest ran from its start to its end without a break.
    spell = [i for i, name in enumerate(running_first) if name == "j0"]
    assert spell == list(range(spell[0], spell[-1] + 1))
    driver.assert_all_pages_back()


def test_what_can_never_fit_is_refused_at_once() -> None:
    driver = Driver(4, small())
    with pytest.raises(PromptTooLong, match=r"17 prompt tokens .* 5 KV pages .* the pool has 4"):
        driver.add(job("huge", list(range(17)), 1))
    driver.add(job("fits", list(range(16)), 1))  # the drawn token never needs a slot
    driver.run()
    assert driver.ends["fits"].reason == "length"


def test_a_full_queue_says_so() -> None:
    driver = Driver(64, small(max_waiting=2))
    driver.add(job("a", [1]), job("b", [2]))
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        driver.add(job("c", [3]))


def test_a_tail_copy_never_stands_in_the_way_of_admission() -> None:
    """The source leaf of a tail copy is locked whole; in a tiny pool that must not deadlock."""
    driver = Driver(10, small())
    driver.add(job("a", list(range(36)), 1))
    driver.run()
    driver.add(job("b", [0, 1, *range(3, 40)], 1))
    driver.run()
    assert driver.tokens["b"] == expected([0, 1, *range(3, 40)], 1, driver.vocab)


# -- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_steps", [0, 1, 3, 30])
def test_cancel_at_every_stage_frees_everything_within_the_step(after_steps: int) -> None:
    driver = Driver(256, small(chunk_tokens=8))
    driver.add(job("a", PREFIX, 50))
    for _ in range(after_steps):
        driver.step()
    driver.cancel("a")
    assert driver.ends["a"].reason == "cancelled"
    driver.assert_all_pages_back()
    driver.cancel("a")  # too late is no error
    assert driver.scheduler.idle


def test_a_live_id_is_refused_and_free_again_afterwards() -> None:
    """BR-10."""
    driver = Driver(64, small())
    driver.add(job("job-1", [1, 2], 5))
    driver.step()
    with pytest.raises(DuplicateRequest, match="job-1"):
        driver.add(job("job-1", [3, 4], 5))
    driver.run()
    assert driver.tokens["job-1"] == expected([1, 2], 5, driver.vocab)
    driver.ends.clear()
    driver.add(job("job-1", [3, 4], 5))
    driver.run()
    assert driver.tokens["job-1"] == expected([3, 4], 5, driver.vocab)
    driver.assert_all_pages_back()


def test_a_failed_step_fails_its_rows_alone() -> None:
    driver = Driver(64, small(max_running=1))
    driver.runner.fail_steps = {1}
    driver.add(job("a", [1, 2], 5), job("b", [3, 4], 5))
    driver.run()
    assert driver.ends["a"].error is not None
    assert driver.ends["a"].error[0] == "step_failed"
    assert driver.tokens["b"] == expected([3, 4], 5, driver.vocab)
    driver.assert_all_pages_back()


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one token"):
        Driver(8, small()).add(job("empty", [], 1))


def test_a_prompt_of_6000_in_chunks_of_4_ends_well() -> None:
    """BR-03: nothing is recursive."""
    driver = Driver(800, small(page_size=16, chunk_tokens=4))
    prompt = [i % 50 for i in range(6000)]
    driver.scheduler.add(job("long", prompt, 2))
    driver.tokens["long"] = []
    driver.cache.audit = lambda: None  # type: ignore[method-assign]  # O(tree) a step: too slow here
    driver.run()
    assert driver.tokens["long"] == expected(prompt, 2, driver.vocab)


# -- tries --------------------------------------------------------------------------------------


def test_a_trie_computes_the_prompt_and_its_inner_nodes_once() -> None:
    driver = Driver(64, small())
    paths = [[10, 11, 12], [10, 11, 13], [20]]
    driver.add(job("pick", [1, 2, 3], 0, trie=trie(paths)))
    driver.run()
    assert driver.ends["pick"].computed_tokens == 3 + 2  # inner nodes: 10 and 11
    assert len(driver.ends["pick"].node_logprobs) == 5


def test_the_winner_of_a_trie_stays_cached_and_right() -> None:
    driver = Driver(64, small())
    paths = [[5, 6, 7, 8], [5, 9, 9, 9], [30, 31, 32, 33]]
    driver.add(job("pick", [1, 2, 3], 0, trie=trie(paths)))
    driver.run()
    winner = driver.ends["pick"].winner
    assert winner is not None
    prompt = [1, 2, 3, *paths[winner]]
    driver.add(job("next", prompt, 3))
    driver.run()
    assert driver.tokens["next"] == expected(prompt, 3, driver.vocab)
    assert driver.ends["next"].cached_tokens == len(prompt) - 1
    driver.assert_all_pages_back()


def test_a_trie_too_big_for_one_pass_is_refused() -> None:
    driver = Driver(64, small(max_trie_tokens=8))
    with pytest.raises(InvalidRequest, match="9 distinct tokens"):
        driver.add(job("pick", [1], 0, trie=trie([[i] for i in range(9)])))
