"""Every example on the real model: its answer is sound, its table printed, its pages given back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from example_programs import NAMES, load_example
from real_model import RealModel, Served

import branchwork as bw
from branchwork.backend.config import SchedulerConfig

POOL_TOKENS = 6000

documents = load_example("documents")


@pytest.fixture(scope="module")
def served(real_model: RealModel) -> Iterator[Served]:
    config = SchedulerConfig()
    with real_model.serve(POOL_TOKENS // config.page_size, config) as served:
        yield served


def check_few_shot(module: Any, states: Sequence[bw.State]) -> None:
    expected = [kind for _, kind in module.MESSAGES]
    right = sum(state["kind"] == kind for state, kind in zip(states, expected, strict=True))
    assert right >= 10  # of twelve; by chance it is four


def check_chat(module: Any, states: Sequence[bw.State]) -> None:
    (state,) = states
    assert [message["role"] for message in state.messages()] == [
        "system",
        *["user", "assistant"] * len(module.TURNS),
    ]
    records = state.explain().records
    assert len(records) == len(module.TURNS)
    for before, after in itertools.pairwise(records):
        assert state[before.call].strip()
        assert after.cached_tokens >= before.prompt_tokens


def check_react(module: Any, states: Sequence[bw.State]) -> None:
    (state,) = states
    steps = state.returned
    assert [step.action for step in steps] == ["Search", "Calculate", "Answer"]
    assert "14 tables with 6 chairs" in steps[0].result
    assert steps[1].given.strip() == "14 * 6"
    assert steps[1].result == "84"
    assert steps[2].given == "84"
    assert steps[2].result is None


def check_tree_of_thought(module: Any, states: Sequence[bw.State]) -> None:
    (state,) = states
    plan = state.returned
    assert len(plan.steps) == len(plan.worths) == module.DEPTH
    assert all(plan.steps)
    assert all(0 < worth < 1 for worth in plan.worths)
    assert plan.steps[-1] in state.text()


def check_branch_solve_merge(module: Any, states: Sequence[bw.State]) -> None:
    (state,) = states
    verdict = state.returned
    assert len(state.explain().records) == len(module.ANSWERS) * len(module.CRITERIA) + 1
    assert verdict.winner == "B"
    assert verdict.total("B") > verdict.total("A") + 0.05
    assert state["reason"].strip()


def check_rag(module: Any, states: Sequence[bw.State]) -> None:
    texts = {document.name: document.text for document in documents.load()}
    assert [state.returned.document for state in states] == ["mill_museum", "history", "bus"]
    for state, fact in zip(states, ("7 metres", "Martha Lindqvist", "20 minutes"), strict=True):
        answer = state.returned
        assert answer.text
        assert answer.quote in texts[answer.document]
        assert fact in answer.quote


def check_triage_batch(module: Any, states: Sequence[bw.State]) -> None:
    assert len(states) == len(documents.load())
    for state in states:
        assert state["title"].strip()
        assert state["subject"] in module.SUBJECTS
    assert len({state["subject"] for state in states}) >= 4


# What each must show, and the least part of its prompt tokens that sharing must save, cold.
CHECKS: dict[str, tuple[Callable[[Any, Sequence[bw.State]], None], float]] = {
    "branch_solve_merge": (check_branch_solve_merge, 0.60),
    "chat": (check_chat, 0.60),
    "few_shot": (check_few_shot, 0.75),
    "rag": (check_rag, 0.60),
    "react": (check_react, 0.85),
    "tree_of_thought": (check_tree_of_thought, 0.90),
    "triage_batch": (check_triage_batch, 0.60),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_answers_shares_and_gives_its_pages_back(
    name: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    check, least_share = CHECKS[name]
    module = load_example(name)
    result = module.main(served)
    states = result if isinstance(result, list) else [result]

    check(module, states)
    printed = capsys.readouterr().out
    assert str(states[-1].explain()) in printed
    bills = [state.explain().savings for state in states]
    prompt = sum(bill.prompt_tokens for bill in bills)
    assert sum(bill.cached_tokens for bill in bills) >= least_share * prompt
    after = served.scheduler.stats()
    assert after.running == after.waiting == after.leased_pages == 0
    assert after.free_pages + after.cached_pages == after.total_pages
