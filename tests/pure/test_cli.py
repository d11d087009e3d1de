"""The command line: exit codes, one clear line for an error, JSON where a machine reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

from branchwork.backend.model import fetch
from branchwork.lang.errors import DownloadError
from branchwork.lang.mock import MockClient
from branchwork.server.cli import app


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWORK_CACHE", str(tmp_path))
    return tmp_path


def call(*argv: str) -> Result:
    return CliRunner().invoke(app, list(argv))


def plant_model(cache: Path, name: str) -> Path:
    folder = cache / "models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from branchwork.server.cli import main\n"
        "sys.argv = ['branchwork', '--help']\n"
        "try:\n    main()\n"
        "finally:\n"
        "    print('HEAVY', *sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    for name in ("demo", "run", "chat", "bench", "pull", "env"):
        assert f"  {name} " in done.stdout
    assert done.stdout.rstrip().endswith("HEAVY")


def test_the_module_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "branchwork", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("branchwork 0.")


def test_no_command_shows_the_help_and_an_unknown_one_is_a_usage_error() -> None:
    assert "Usage:" in call().output
    assert call("no-such-command").exit_code == 2
    assert call("pull").exit_code == 2


def test_env_shows_machine_cache_and_models(cache: Path) -> None:
    plant_model(cache, "org--name")
    result = call("env", "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["cache"] == str(cache)
    assert facts["packages"]["branchwork"]
    assert facts["packages"]["triton"] is None or facts["packages"]["triton"]
    assert facts["machine"]["cores"] >= 1
    assert [model["name"] for model in facts["models"]] == ["org/name"]
    assert "org/name" in call("env").stdout


def test_pull_prints_where_the_model_lies(cache: Path) -> None:
    folder = plant_model(cache, "mine")
    assert call("pull", "mine").stdout == f"mine is at {folder}\n"
    assert json.loads(call("pull", "mine", "--json").stdout)["path"] == str(folder)


def test_a_model_asked_for_wrongly_is_one_line_and_exit_2() -> None:
    result = call("pull", "no-such-model")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("branchwork: unknown model 'no-such-model'")
    assert "Traceback" not in result.stderr


def test_a_failure_is_exit_1_and_a_document_where_a_machine_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(_self: fetch.Fetcher, _name: str) -> Path:
        raise DownloadError("the network is down")

    monkeypatch.setattr(fetch.Fetcher, "pull", offline)
    result = call("pull", "smollm2", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert error == {"code": "download", "message": "the network is down"}


def test_ctrl_c_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_self: fetch.Fetcher, _name: str) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.Fetcher, "pull", interrupted)
    assert call("pull", "smollm2").exit_code == 130


PROGRAMS = """
import branchwork as bw
import helper_beside_it

@bw.program
def greet(s, name: str, times=1):
    s += bw.user(f"Greet {name} {times + helper_beside_it.NOTHING} times.")
    s += bw.assistant(bw.gen("greeting", max_tokens=20))
    return {"times": times}

@bw.program
def fails(s):
    s += "Once" + bw.gen("told")
    s["untold"]
"""


class MockEngine:
    """Stands where the embedded engine would; remembers how it was made and closed."""

    made: ClassVar[list[MockEngine]] = []

    def __init__(self, model: str, *, dtype: str, kv_tokens: int | None) -> None:
        self.asked = (model, dtype, kv_tokens)
        self.client = MockClient(cache=True)
        self.closed = False
        self.made.append(self)

    def __enter__(self) -> MockEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[MockEngine]:
    monkeypatch.setattr(MockEngine, "made", [])
    monkeypatch.setattr("branchwork.server.commands.run.Engine", MockEngine)
    return MockEngine.made


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "helper_beside_it.py").write_text("NOTHING = 0\n")
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS)
    monkeypatch.setattr(sys, "path", list(sys.path))  # `run` puts the file's folder there
    for name in ("branchwork_program", "helper_beside_it"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return path


def test_run_prints_the_text_and_keeps_the_table_off_standard_output(
    script: Path, engines: list[MockEngine]
) -> None:
    result = call("run", f"{script}:greet", "--arg", "name=Ada", "--model", "mine")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("user: Greet Ada 1 times.\nassistant: ")
    assert "sharing saved" not in result.stdout
    assert "sharing saved" in result.stderr
    (engine,) = engines
    assert engine.asked == ("mine", "auto", None)
    assert engine.closed


def test_run_gives_a_machine_values_calls_and_savings(
    script: Path, engines: list[MockEngine]
) -> None:
    argv = ("run", f"{script}:greet", "--arg", "name=7", "--arg", "times=3", "--json")
    found = json.loads(call(*argv, "--kv-tokens", "512", "--dtype", "float32").stdout)
    assert found["program"] == "greet"
    assert "Greet 7 3 times" in found["text"]  # a str parameter takes text, others JSON
    assert found["returned"] == {"times": 3}
    assert found["values"]["greeting"]
    assert [record["call"] for record in found["calls"]] == ["greeting"]
    assert found["savings"]["calls"] == 1
    assert engines[0].asked == ("smollm2", "float32", 512)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["{script}"], "Name one: FILE.py:PROGRAM"),
        (["{script}:absent"], "it has: greet, fails"),
        (["/no/such/file.py:main"], "found no file /no/such/file.py"),
        (["{script}:greet"], "missing a required argument: 'name'"),
        (["{script}:greet", "--arg", "name"], "NAME=VALUE"),
        (["{script}:greet", "--arg", "name=a", "--arg", "name=b"], "given twice"),
        (["{script}:greet", "--arg", "name=a", "--arg", "nam=b"], "unexpected keyword"),
        (["{script}:greet", "--arg", "name=a", "--dtype", "int3"], "dtype must be one of"),
    ],
)
def test_a_run_asked_for_wrongly_says_what_was_expected(
    script: Path, engines: list[MockEngine], argv: list[str], told: str
) -> None:
    result = call("run", *(each.format(script=script) for each in argv))
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert engines == []  # said before a model is loaded


def test_a_body_that_raises_still_gives_a_machine_a_document(
    script: Path, engines: list[MockEngine]
) -> None:
    script.write_text("import branchwork as bw\n@bw.program\ndef main(s):\n    [][1]\n")
    result = call("run", str(script), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["message"] == "IndexError: list index out of range"
    assert isinstance(result.exception, IndexError)
    assert engines[0].closed


def test_a_programs_own_mistake_is_one_line_with_its_place_and_exit_1(
    script: Path, engines: list[MockEngine]
) -> None:
    result = call("run", f"{script}:fails")
    assert result.exit_code == 1
    assert "programs.py:14" in result.stderr
    assert "Traceback" not in result.stderr
    assert engines[0].closed


def test_an_error_of_the_file_itself_keeps_its_traceback(script: Path) -> None:
    script.write_text("1 / 0\n")
    assert isinstance(call("run", str(script)).exception, ZeroDivisionError)


def test_demo_shows_the_answer_then_the_table_then_the_tree(engines: list[MockEngine]) -> None:
    result = call("demo", "My parcel is lost.")
    assert result.exit_code == 0, result.stderr
    parts = [
        *("My parcel is lost.", "kept"),
        *("computed", "reply[2]", "verdict[2]"),
        *("└── category", "├── reply[0]", "verdict[0]", "└── reply[2]", "sharing saved"),
    ]
    at = -1
    for part in parts:
        found = result.stdout.find(part, at + 1)
        assert found > at, f"{part!r} is missing or too early in:\n{result.stdout}"
        at = found
    assert engines[0].closed


def test_the_demo_shares_its_examples_with_every_call(engines: list[MockEngine]) -> None:
    found = json.loads(call("demo", "--json").stdout)
    first, *others = found["calls"]
    assert len(others) == 6
    for record in others:
        assert record["cached_tokens"] >= first["prompt_tokens"]
    assert found["values"]["reply"][found["returned"]["best"]] in found["text"]
