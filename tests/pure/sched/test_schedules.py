"""Random schedules give the tokens of the unscheduled run, and every page comes back."""

from __future__ import annotations

from drive import Driver, trie
from fake_runner import chain_all, expected_of, token_logprob
from hypothesis import given, settings
from strategies import JobCase, Schedule, schedules

from branchwork.lang.choose import pick


def check_generated(driver: Driver, case: JobCase) -> None:
    job, end = case.job, driver.ends[case.job.id]
    if end.reason == "error":
        assert end.error is not None
        assert end.error[0] == "step_failed"
        return
    whole = expected_of(job, driver.vocab)
    drawn = driver.tokens[job.id]
    assert drawn == whole[: len(drawn)]
    if end.reason == "length":
        assert len(drawn) == job.max_tokens
    if end.reason == "stop":
        assert drawn[-1] in job.end_ids or str(drawn[-1]) in job.stop
    assert not {*job.end_ids}.intersection(drawn[:-1])
    assert not {*job.stop}.intersection(map(str, drawn[job.min_tokens : -1]))
    if end.reason == "stop":
        assert len(drawn) > job.min_tokens
    check_prompt_logprobs(case, end.prompt_logprobs)


def check_prompt_logprobs(case: JobCase, found: tuple[float, ...]) -> None:
    start = case.job.logprobs_from
    wanted = (
        range(len(case.prompt), len(case.prompt))
        if start is None
        else range(max(start, 1), len(case.prompt))
    )
    right = [token_logprob(chain_all(case.prompt[:i]), case.prompt[i]) for i in wanted]
    assert list(found) == right[: len(found)]


def check_scored(driver: Driver, case: JobCase) -> None:
    end = driver.ends[case.job.id]
    if end.reason != "stop":
        return
    naive = [
        [token_logprob(chain_all([*case.prompt, *path[:i]]), path[i]) for i in range(len(path))]
        for path in case.choices
    ]
    assert end.winner == pick("total", naive)


def play(schedule: Schedule) -> Driver:
    driver = Driver(schedule.n_pages, schedule.config)
    driver.runner.fail_steps = schedule.fail_steps

    def each_step(step: int) -> None:
        for case in schedule.cases:
            if case.arrives == step:
                driver.add(case.job)
            if case.cancelled == step and case.job.id in driver.tokens:
                driver.cancel(case.job.id)

    last = max(max(case.arrives, case.cancelled or 0) for case in schedule.cases)
    for step in range(last + 1):
        each_step(step)
        driver.step()
    driver.run()
    return driver


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_any_schedule_gives_the_tokens_of_the_unscheduled_run(schedule: Schedule) -> None:
    driver = play(schedule)
    for case in schedule.cases:
        assert case.job.id in driver.ends
        if case.choices:
            check_scored(driver, case)
        else:
            check_generated(driver, case)
    driver.assert_all_pages_back()


@settings(max_examples=50, deadline=None)
@given(schedules(failures=False, cancels=False))
def test_a_second_round_hits_and_says_the_same(schedule: Schedule) -> None:
    driver = play(schedule)
    first = dict(driver.tokens)
    driver.ends.clear()
    driver.add(*(case.job for case in schedule.cases))
    driver.run()
    assert driver.tokens == first
    driver.assert_all_pages_back()


def test_trie_helper_shares_nodes() -> None:
    made = trie([[1, 2], [1, 3], [1]])
    assert made.tokens == (1, 2, 3)
    assert made.parents == (-1, 0, 0)
    assert made.paths == ((0, 1), (0, 2), (0,))
