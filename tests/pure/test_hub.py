"""The Hugging Face hub without a network: a repository in the library's cache layout, and a library
that is told what the network would say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from branchwork.backend.model.fetch import Fetcher
from branchwork.backend.model.hub import PATTERNS, Hub
from branchwork.lang.errors import DownloadError, UnknownModel

NAME = "org/tiny-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "x"}
INDEX = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
SHARDED = {
    "config.json": "{}",
    "model.safetensors.index.json": json.dumps(INDEX),
    "model-1-of-2.safetensors": "x",
}


def put(cache: Path, files: dict[str, str]) -> Path:
    """A repository as the library caches it: a branch that names a commit, and that commit."""
    base = cache / "models--org--tiny-model"
    folder = base / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(COMMIT)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], list[dict[str, object]]]:
    """Put an answer (a folder or an error) in place of the network; calls to it are listed."""
    real, calls = huggingface_hub.snapshot_download, []

    def install(answer: object) -> list[dict[str, object]]:
        def download(name: str, **options: object) -> str:
            if options.get("local_files_only"):
                return str(real(name, **options))
            calls.append({"name": name, **options})
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return calls

    return install


def hub_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    request = SimpleNamespace(method="GET", url="hub")
    response = SimpleNamespace(headers={}, request=request, status_code=404, url="hub")
    return kind("said no", response=response)


def test_a_cached_repository_is_found_without_the_network(
    tmp_path: Path, network: Callable[[object], list[dict[str, object]]]
) -> None:
    folder, calls = put(tmp_path / "hub", WHOLE), network(OSError("no route"))
    assert Fetcher(tmp_path / "root", hub=Hub(tmp_path / "hub")).resolve(NAME) == folder
    assert Hub(tmp_path / "hub", offline=True).fetch(NAME, refresh=True) == folder
    assert calls == []


def test_only_what_a_model_needs_is_asked_for(
    tmp_path: Path, network: Callable[[object], list[dict[str, object]]]
) -> None:
    folder = put(tmp_path / "elsewhere", WHOLE)
    calls = network(folder)
    assert Hub(tmp_path / "hub").fetch(NAME) == folder
    (call,) = calls
    assert call == {"name": NAME, "cache_dir": tmp_path / "hub", "allow_patterns": list(PATTERNS)}


def test_pull_asks_for_the_newest_commit_even_where_one_is_cached(
    tmp_path: Path, network: Callable[[object], list[dict[str, object]]]
) -> None:
    put(tmp_path / "hub", WHOLE)
    newer = put(tmp_path / "newer", WHOLE)
    calls = network(newer)
    assert Fetcher(tmp_path / "root", hub=Hub(tmp_path / "hub")).pull(NAME) == newer
    assert len(calls) == 1


def test_a_repository_that_lacks_a_shard_is_fetched_again(
    tmp_path: Path, network: Callable[[object], list[dict[str, object]]]
) -> None:
    folder = put(tmp_path / "hub", SHARDED)
    calls = network(folder)
    with pytest.raises(UnknownModel, match=r"holds no model-2-of-2\.safetensors"):
        Hub(tmp_path / "hub").fetch(NAME)
    assert len(calls) == 1
    (folder / "model-2-of-2.safetensors").write_text("x")
    assert Hub(tmp_path / "hub").fetch(NAME) == folder
    assert len(calls) == 1


def test_a_repository_of_another_format_is_named(
    tmp_path: Path, network: Callable[[object], list[dict[str, object]]]
) -> None:
    network(put(tmp_path / "hub", {"README.md": "GGUF"}))
    with pytest.raises(UnknownModel, match=r"holds no config\.json.*\.gguf --local-dir"):
        Hub(tmp_path / "hub").fetch(NAME)


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        (OSError("no route to host\nlong story"), DownloadError, "no route to host\n  Without"),
        (errors.LocalEntryNotFoundError("offline"), DownloadError, "hf download org/tiny-model"),
        (hub_error(errors.GatedRepoError), DownloadError, "terms of use.*hf auth login"),
        (hub_error(errors.RepositoryNotFoundError), UnknownModel, "has no such repository"),
        (errors.HFValidationError("bad name"), UnknownModel, "has no such repository"),
    ],
)
def test_what_the_network_says_becomes_a_typed_error(
    tmp_path: Path,
    network: Callable[[object], list[dict[str, object]]],
    answer: Exception,
    expected: type[Exception],
    message: str,
) -> None:
    network(answer)
    with pytest.raises(expected, match=message):
        Hub(tmp_path / "hub").fetch(NAME)


def test_offline_and_not_cached_says_how_to_bring_it(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="hf download org/tiny-model --local-dir DIR"):
        Hub(tmp_path, offline=True).fetch(NAME)


def test_a_bare_name_never_reaches_the_network(
    tmp_path: Path, network: Callable[[object], list[dict[str, object]]]
) -> None:
    calls = network(OSError("no route"))
    with pytest.raises(UnknownModel, match="smollm2"):
        Fetcher(tmp_path, hub=Hub(tmp_path / "hub")).resolve("smolm2")
    assert calls == []
