"""The workloads are what they say, records survive a round trip, sharing saves in the right order.

On the mock client and on engines over the fake runner; nothing here looks at a time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from engines import fake_engine
from recording import Recording
from typer.testing import CliRunner, Result

from branchwork.backend.config import SchedulerConfig
from branchwork.bench import ablation, measure, offline, record, workloads
from branchwork.bench.offline import Plan
from branchwork.bench.workloads import NAMES, make
from branchwork.lang.errors import InvalidRequest
from branchwork.lang.mock import MockClient, settle
from branchwork.lang.program import Engine
from branchwork.lang.request import Tokens
from branchwork.server.cli import app

# -- workloads --------------------------------------------------------------------------------

CALLS = {
    "single": (2, 128),
    "streams": (64, 64),
    "few-shot": (48, 1),
    "tree": (4 * (3 + 9), 32),
    "rag": (6 * 6, 32),
    "agents": (8 * 5, 32),
    "chat": (8 * 5, 48),
    "prefill": (1, 1),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_makes_the_calls_it_is_named_for(name: str) -> None:
    client = MockClient(cache=True)
    made = make(name)
    outcome = measure.run(made, client)
    n_calls, n_tokens = CALLS[name]
    assert client.n_calls == outcome.calls == made.n_calls == n_calls
    assert outcome.drawn_tokens == made.n_drawn == n_calls * n_tokens
    assert {request.sampling.max_tokens for request in client.requests} == {n_tokens}
    assert all(request.sampling.ignore_eos for request in client.requests)


def prompts(name: str, seed: int, repeat: int) -> list[tuple[int, ...]]:
    client = MockClient()
    make(name, seed=seed, repeat=repeat, scale=0.25).run(client)
    return sorted(settle(request).ids for request in client.requests)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_a_function_of_seed_and_repeat(name: str) -> None:
    assert make(name, seed=3, repeat=1).inputs == make(name, seed=3, repeat=1).inputs
    assert make(name, seed=3, repeat=1).inputs != make(name, seed=3, repeat=2).inputs
    assert make(name, seed=3, repeat=1).inputs != make(name, seed=4, repeat=1).inputs
    assert prompts(name, 3, 1) == prompts(name, 3, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_repeat_finds_nothing_of_the_one_before(name: str) -> None:
    """No more than the fixed words that every prompt of the shape opens with."""
    client = Recording(MockClient(cache=True))
    for repeat in range(2):
        make(name, repeat=repeat, scale=0.1).run(client)
        if repeat == 0:
            first = len(client.finishes)
    cold = client.finishes[first]
    assert cold.usage.cached_tokens < 120


def test_the_shapes_share_what_they_should() -> None:
    few_shot = make("few-shot").inputs
    assert len({each["shots"] for each in few_shot}) == 1
    assert len({each["question"] for each in few_shot}) == 48
    assert 650 < len(few_shot[0]["shots"].split()) < 700
    rag = [each["document"] for each in make("rag").inputs]
    assert sorted(map(rag.count, set(rag))) == [6] * 6
    assert rag != sorted(rag, key=rag.index)  # questions on one document stand apart
    agents = make("agents").inputs
    assert len({each["tools"] for each in agents}) == 1
    assert len({each["task"] for each in agents}) == 8
    assert len({each["prompt"] for each in make("streams").inputs}) == 64
    assert make("single").width == 1


def test_the_tree_forks_thoughts_on_one_prompt_and_keeps_them_apart() -> None:
    client = MockClient()
    make("tree", scale=0.25).run(client)
    seen: dict[tuple[int, ...], set[int | None]] = {}
    for request in client.requests:
        seen.setdefault(settle(request).ids, set()).add(request.sampling.seed)
    assert sorted(map(len, seen.values())) == [3] * 4


def test_turns_extend_each_other_token_for_token() -> None:
    client = MockClient()
    make("chat", scale=0.25).run(client)
    later = [request for request in client.requests if isinstance(request.segments[0], Tokens)]
    assert len(later) == 2


def test_scale_shrinks_counts_and_lengths_but_not_the_shape() -> None:
    small = make("few-shot", scale=0.25)
    assert small.n_calls == 12
    assert len(small.inputs[0]["shots"]) < 0.3 * len(make("few-shot").inputs[0]["shots"])
    assert make("tree", scale=0.01).n_calls == 12
    assert make("rag", scale=0.01).n_calls == 4
    assert make("prefill", scale=0.01).n_calls == 1


@pytest.mark.parametrize("scale", [0, -1, 17, float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(InvalidRequest, match="scale"):
        make("chat", scale=scale)
    with pytest.raises(InvalidRequest, match="few-shot"):
        make("no such")


# -- records ----------------------------------------------------------------------------------


def test_a_record_survives_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    samples = {"seconds": [3.0, 1.0, 2.0, 5.0]}
    made = [record.record(f"b/{i}", {"scale": 0.5}, samples, {"calls": i}) for i in range(2)]
    for each in made:
        record.append(path, each)
    lines = path.read_text().splitlines()
    assert [record.from_line(line) for line in lines] == made
    spread = made[0].spread["seconds"]
    assert (spread.n, spread.median, spread.least, spread.most) == (4, 2.5, 1.0, 5.0)
    assert spread.lower_quartile <= spread.median <= spread.upper_quartile
    assert made[0].machine["cores"] >= 1
    with pytest.raises(msgspec.ValidationError):
        record.from_line('{"bench": 1}')


def test_few_samples_have_a_spread_too() -> None:
    one = record.spread([2.0])
    assert (one.median, one.lower_quartile, one.upper_quartile) == (2.0, 2.0, 2.0)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_this_checkouts_and_says_what_was_changed(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    (folder / "deeper").mkdir(parents=True)
    (folder / "file").write_text("1")
    assert record.commit(folder) is None
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    for argv in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "m")):
        subprocess.run(["git", "-C", str(tmp_path), *argv], check=True, timeout=30)
    clean = record.commit(folder)
    assert clean is not None
    assert len(clean) == 12
    (folder / "file").write_text("2")
    assert record.commit(folder) == clean + "+"
    assert record.commit(folder / "deeper") is None  # somebody's repository around an install


# -- ablation and offline ---------------------------------------------------------------------


@contextlib.contextmanager
def fake(config: SchedulerConfig, n_pages: int = 4000) -> Iterator[Engine]:
    with fake_engine(n_pages, config) as engine:
        yield engine.client


def computed(
    name: str, running: int, overtakes: int = 2, n_pages: int = 4000, scale: float = 0.2
) -> dict[str, int]:
    """Exact but for a few tokens: which call reaches the engine first is left to chance."""
    plan = Plan((name,), scale=scale, repeats=1, seed=0)
    found = ablation.measure(partial(fake, n_pages=n_pages), plan, running, overtakes)
    return {setup: outcomes[0].computed_tokens for (_, setup), outcomes in found.items()}


@pytest.mark.parametrize("name", ["few-shot", "tree", "rag", "agents"])
def test_each_part_of_the_sharing_saves_tokens(name: str) -> None:
    found = computed(name, running=8)
    assert found["no cache"] > found["cache"] > 0.95 * found["+ deferral"]
    assert found["no cache"] > 1.5 * found["+ deferral"]


def test_deferral_saves_where_twins_arrive_together() -> None:
    found = computed("few-shot", running=8)
    assert found["cache"] > found["+ deferral"]


def test_ageing_costs_nothing_where_everything_fits_and_some_where_the_cache_is_small() -> None:
    roomy = computed("rag", running=2, overtakes=1)
    assert roomy["+ ageing"] < 1.2 * roomy["+ deferral"]
    tight = computed("rag", running=1, overtakes=1, n_pages=80, scale=0.34)
    assert tight["+ deferral"] < tight["+ ageing"] < tight["no cache"]


def test_what_shares_nothing_is_computed_alike() -> None:
    found = computed("streams", running=8)
    assert found["no cache"] - found["+ deferral"] < 0.2 * found["no cache"]


def test_unshared_calls_each_have_a_namespace_of_their_own() -> None:
    client = MockClient(cache=True)
    outcome = measure.run(make("few-shot", scale=0.1), measure.Unshared(client))
    assert outcome.cached_tokens == 0
    assert len({request.namespace for request in client.requests}) == outcome.calls
    assert client.open_streams == 0


def test_the_ablation_table_has_a_row_a_setup() -> None:
    plan = Plan(("few-shot",), scale=0.1, repeats=2, seed=0)
    found = ablation.measure(fake, plan, 8, 2)
    rows = ablation.records(found, {"scale": 0.1})
    assert [each.bench for each in rows] == [
        f"ablation/few-shot/{setup.name}" for setup in ablation.SETUPS
    ]
    assert all(len(each.samples["seconds"]) == 2 for each in rows)
    assert ablation.table(rows).row_count == 4


def test_offline_measures_every_workload_the_same_number_of_times() -> None:
    plan = Plan(NAMES, scale=0.1, repeats=2, seed=0)
    found = offline.measure(MockClient(cache=True), plan)
    rows = offline.records(found, plan, {"model": "mock"})
    assert [each.bench for each in rows] == [f"offline/{name}" for name in NAMES]
    assert all(each.spread["seconds"].n == 2 for each in rows)
    assert offline.table(rows).row_count == len(NAMES)


# -- the command ------------------------------------------------------------------------------


def call(*argv: str) -> Result:
    return CliRunner().invoke(app, ["bench", *argv])


def test_without_a_name_the_benches_are_listed() -> None:
    assert set(json.loads(call("--json").stdout)) >= {"ablation", "micro_radix", "offline"}
    listed = call()
    assert listed.exit_code == 0
    assert "offline" in listed.stdout
    assert "workloads" not in [line.split()[0] for line in listed.stdout.splitlines()]


@pytest.mark.parametrize("name", ["nope", "workloads", "record", "../server/cli", "os"])
def test_only_a_bench_is_loaded(name: str) -> None:
    result = call(name)
    assert result.exit_code == 2
    assert "there are ablation" in result.stderr


def test_what_stands_behind_the_name_is_the_benchs_own() -> None:
    result = call("micro_radix", "--tokens", "200", "--page-size", "1", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["tokens"] == 200
    shown = call("offline", "--help")
    assert shown.exit_code == 0
    assert "tree of thought" in shown.stdout.lower()
    assert call("micro-radix", "--no-such-option").exit_code == 2


class MockEngine:
    made: ClassVar[list[SchedulerConfig | None]] = []

    def __init__(
        self,
        model: str,
        *,
        kv_tokens: int | None,
        scheduler: SchedulerConfig | None = None,
        quiet: bool = False,
    ) -> None:
        self.client = MockClient(cache=True)
        self.facts = type("Facts", (), {"line": f"mock {model}"})
        self.made.append(scheduler)

    def __enter__(self) -> MockEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[SchedulerConfig | None]:
    monkeypatch.setattr(MockEngine, "made", [])
    for module in (offline, ablation):
        monkeypatch.setattr(module, "Engine", MockEngine)
    return MockEngine.made


def test_offline_prints_a_table_or_a_record_a_line(
    engines: list[SchedulerConfig | None], tmp_path: Path
) -> None:
    path = tmp_path / "kept.jsonl"
    argv = ("--scale", "0.1", "--only", "tree,chat", "--record", str(path))
    shown = call("offline", *argv)
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["workload", "tree", "chat"]
    printed = call("offline", *argv, "--json").stdout.splitlines()
    assert path.read_text().splitlines()[2:] == printed
    first = record.from_line(printed[0])
    assert first.parameters == {"scale": 0.1, "seed": 0, "model": "mock smollm2"}
    assert len(first.samples["seconds"]) == 3


def test_ablation_opens_an_engine_a_setup(engines: list[SchedulerConfig | None]) -> None:
    shown = call("ablation", "--scale", "0.1", "--only", "tree", "--running", "4")
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) == 5
    configs = [each for each in engines if each is not None]
    assert [each.defer_twins for each in configs] == [False, False, True, True]
    assert [each.max_overtakes for each in configs] == [ablation.NEVER] * 3 + [8]
    assert {each.max_running for each in configs} == {4}


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--only", "nope"], "no workload 'nope'"),
        (["--repeats", "0"], "--repeats must be"),
        (["--scale", "0"], "scale must be"),
    ],
)
def test_what_cannot_run_is_refused_before_an_engine_opens(
    engines: list[SchedulerConfig | None], argv: list[str], told: str
) -> None:
    for bench in ("offline", "ablation"):
        result = call(bench, *argv)
        assert result.exit_code == 2
        assert told in result.stderr
    assert engines == []
    assert workloads.about("prefill").startswith("One cold prompt")
