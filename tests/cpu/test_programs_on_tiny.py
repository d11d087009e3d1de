"""A branching program on a tiny real model: every call answers as if there were no cache at all."""

from __future__ import annotations

import pytest
from byte_tokenizer import byte_tokenizer
from recording import Recording
from tiny import SPEC, tiny_runner

import branchwork as bw
from branchwork.backend.config import SchedulerConfig
from branchwork.backend.inprocess import InProcessPort
from branchwork.backend.port import Rules
from branchwork.backend.sched.plan import Draw, Row, StepPlan
from branchwork.backend.sched.scheduler import Scheduler
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.stops import watch_factory
from branchwork.lang.request import Finish
from branchwork.radix.cache import PrefixCache

CHOICES = ("red", "redder", "green", "grey", "blue")
LONG = ("the same long beginning one", "the same long beginning two", "another")


@bw.program
def branching(s: bw.State, topic: str) -> None:
    s += f"About {topic}: " + bw.gen("intro", max_tokens=6, ignore_eos=True)
    s += " colour=" + bw.select("colour", CHOICES)
    s += " then " + bw.gen("then", max_tokens=5, ignore_eos=True)
    branches = s.fork(3)
    branches += lambda i: f" [{i % 2}] " + bw.select("line", LONG)
    branches += " so " + bw.gen("so", max_tokens=4, ignore_eos=True)
    branches.join()
    s += " end=" + bw.select("end", LONG) + bw.gen("last", max_tokens=5, ignore_eos=True)


def cold_greedy(ids: tuple[int, ...], n: int) -> list[int]:
    """Tokens after `ids`, the whole sequence computed anew for each."""
    runner, pages, sequence = tiny_runner(n_pages=128), list(range(128)), list(ids)
    for _ in range(n):
        row = Row(sequence, 0, pages, draw=Draw(Rules(), 0, len(sequence)))
        (out,) = runner.sample(runner.forward(StepPlan((row,)))).rows
        assert out.token is not None
        sequence.append(out.token)
    return sequence[len(ids) :]


def cold_total(ids: tuple[int, ...], choice: str) -> float:
    """log p(choice | ids), computed anew."""
    runner, tail = tiny_runner(n_pages=128), list(choice.encode())
    scores = tuple((len(ids) - 1 + i, token) for i, token in enumerate(tail))
    row = Row([*ids, *tail], 0, list(range(128)), scores=scores)
    (out,) = runner.sample(runner.forward(StepPlan((row,)))).rows
    return sum(out.scores)


def check(finish: Finish) -> None:
    if not finish.scores:
        assert list(finish.token_ids) == cold_greedy(finish.prompt.ids, len(finish.token_ids))
        return
    assert finish.winner is not None
    for score in finish.scores:
        if score.text not in CHOICES:  # those carry an end-of-turn token in their score
            assert score.total == pytest.approx(cold_total(finish.prompt.ids, score.text), abs=1e-3)
    assert finish.winner == max(range(len(finish.scores)), key=lambda i: finish.scores[i].total)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("n_tokens", [2048, 320])
def test_every_call_answers_as_if_there_were_no_cache(page_size: int, n_tokens: int) -> None:
    n_pages = n_tokens // page_size
    tokenizer = byte_tokenizer()
    config = SchedulerConfig(page_size=page_size, max_running=4, step_tokens=64, chunk_tokens=9)
    cache = PrefixCache(n_pages, page_size)
    scheduler = Scheduler(cache, config, watch_factory(tokenizer))
    port = InProcessPort(scheduler, tiny_runner(n_pages, page_size))
    client = Recording(Frontend(port, tokenizer, ChatFormat.of(tokenizer), 512, SPEC.vocab))
    topics = ["rain", "rails", "rain"]
    states = branching.run_batch([{"topic": topic} for topic in topics], engine=client)
    stats = scheduler.stats()
    cache.audit()
    port.close()
    assert len(client.finishes) == 3 * 11
    for finish in client.finishes:
        check(finish)
    assert states[0].text() == states[2].text()
    assert stats.leased_pages == 0
    assert stats.cached_tokens > stats.prompt_tokens // 3
