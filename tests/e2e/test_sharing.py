"""What is computed at most, counted in tokens, for the shapes that share most."""

from __future__ import annotations

import pytest
from real_model import RealModel
from recording import Recording, distinct_prefixes

import branchwork as bw
from branchwork.backend.config import SchedulerConfig
from branchwork.backend.text.tokenizer import Run

SUBJECTS = (
    "stars", "rivers", "glass", "bread", "clocks", "maps", "bees", "salt", "paper", "bridges",
    "whales", "wool",
)  # fmt: skip
ASKS = ("Is {} older than writing?", "Can {} be red?", "Do children like {}?", "Who made {} first?")
QUESTIONS = [ask.format(subject) for subject in SUBJECTS for ask in ASKS]


def few_shot_prefix() -> str:
    shots = (
        f"Question: Would a careful reader of almanacs expect {subject} in chapter {i}?\n"
        f"Reasoning: The chapter before spoke of {SUBJECTS[i % 12]}, and order is kept.\n"
        f"Answer: {'yes' if i % 3 else 'no'}\n\n"
        for i, subject in enumerate(SUBJECTS * 2)
    )
    return "".join(shots)


@bw.program
def answer(s: bw.State, prefix: str, question: str) -> None:
    s += prefix + f"Question: {question}\nAnswer:" + bw.gen("answer", max_tokens=1)


@bw.program
def think(s: bw.State, problem: str) -> None:
    """Tree of thought: every node forks three thoughts, each is judged, three levels deep."""
    s += f"Problem: {problem}\n"
    level = [s]
    for depth in range(3):
        grown = []
        for node in level:
            branches = node.fork(3)
            branches += f"Step {depth + 1}:" + bw.gen("step", max_tokens=12, stop="\n")
            branches += "\nThis step is" + bw.select("verdict", [" good", " bad", " unclear"])
            branches += "\n"
            grown += list(branches)
        level = grown


@pytest.mark.parametrize("page_size", [1, 16])
def test_few_shot_computes_the_prefix_once(real_model: RealModel, page_size: int) -> None:
    prefix = few_shot_prefix()
    config = SchedulerConfig(page_size=page_size)
    with real_model.serve(16_000 // page_size, config) as served:
        client = Recording(served.client)
        inputs = [{"prefix": prefix, "question": question} for question in QUESTIONS]
        answer.run_batch(inputs, engine=client)
        n_prefix = len(real_model.tokenizer.encode([Run(prefix, trusted=False)]))
    assert n_prefix > 850
    suffixes = sum(f.usage.prompt_tokens - n_prefix for f in client.finishes)
    assert len(client.finishes) == 48
    assert client.computed_prompt <= n_prefix + suffixes + 48


@pytest.mark.parametrize("page_size", [1, 16])
def test_tree_of_thought_computes_distinct_tokens_and_one_a_call(
    real_model: RealModel, page_size: int
) -> None:
    config = SchedulerConfig(page_size=page_size)
    with real_model.serve(16_000 // page_size, config) as served:
        client = Recording(served.client)
        program = think.using(temperature=1.0, seed=11)
        program.run(problem="share nine apples among four children", engine=client)
    calls = len(client.finishes)
    assert calls == 2 * (3 + 9 + 27)
    told = distinct_prefixes(
        (*f.prompt.ids, *after) for f in client.finishes for after in (f.token_ids, f.kept.ids)
    )
    assert client.computed <= told + calls
