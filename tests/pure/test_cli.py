"""The command line: exit codes, one clear line for an error, JSON where a machine reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwork.backend.model import fetch
from branchwork.lang.errors import DownloadError
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
    for name in ("demo", "run", "pull", "env"):
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
