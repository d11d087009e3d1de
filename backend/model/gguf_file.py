"""One GGUF file: its scalar metadata and its tensors, dequantised on demand.

The `gguf` package reads the header and undoes the quantisation. Its reader walks every string of
the vocabulary and merge lists (4 s for 49,152 tokens), so what we need of the header is kept as a
small JSON index and the next start maps the tensors directly. Knows no model and no torch. Called
by `open.py` and `weights.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from ...lang.errors import ModelError, UnsupportedModel

INDEX_VERSION = 1

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: quantisation `kind`, `shape` (slowest dimension first), bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """What one file holds. Arrays (vocabulary, merges) are left out."""

    metadata: dict[str, Scalar]
    tensors: dict[str, TensorEntry]


class GgufFile:
    """Read access to one GGUF file. Maps the file for as long as the object lives."""

    def __init__(self, path: Path, index_dir: Path | None) -> None:
        """Open `path`; the index is read from and written to `index_dir` (None: neither)."""
        self.path = path
        stat = path.stat()
        self.index = _cached_index(path, stat, index_dir) or _build_index(path, stat, index_dir)
        for entry in self.index.tensors.values():
            if entry.offset + entry.n_bytes > stat.st_size:
                raise ModelError(
                    f"{path}: tensor {entry.name} should end at byte "
                    f"{entry.offset + entry.n_bytes}, but the file has {stat.st_size}; "
                    "it was cut off, fetch it again"
                )
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, slowest dimension first."""
        return self.index.tensors[name].shape

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as a new float32 array of `shape(name)`."""
        entry = self.index.tensors[name]
        kind = gguf.GGMLQuantizationType[entry.kind]
        raw = self._bytes[entry.offset : entry.offset + entry.n_bytes]
        if kind == gguf.GGMLQuantizationType.F32:
            return np.array(raw.view(np.float32).reshape(entry.shape))
        if kind == gguf.GGMLQuantizationType.F16:
            return raw.view(np.float16).reshape(entry.shape).astype(np.float32)
        rows = raw.reshape(gguf.quant_shape_to_byte_shape(entry.shape, kind))
        try:
            return np.asarray(gguf.dequantize(rows, kind), dtype=np.float32).reshape(entry.shape)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} is quantised as {entry.kind}, which cannot be read"
            ) from error


def _index_path(path: Path, index_dir: Path) -> Path:
    """Two files of one name in different folders keep separate indexes."""
    mark = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return index_dir / f"{path.name}.{mark}.index.json"


def _cached_index(path: Path, stat: os.stat_result, index_dir: Path | None) -> GgufIndex | None:
    """The stored index where it belongs to exactly this file; anything odd means: build anew."""
    if index_dir is None:
        return None
    try:
        stored = json.loads(_index_path(path, index_dir).read_text())
        if stored["stamp"] != _stamp(stat):
            return None
        entries = (TensorEntry(**{**e, "shape": tuple(e["shape"])}) for e in stored["tensors"])
        return GgufIndex(stored["metadata"], {e.name: e for e in entries})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stamp(stat: os.stat_result) -> list[int]:
    return [INDEX_VERSION, stat.st_size, stat.st_mtime_ns]


def _build_index(path: Path, stat: os.stat_result, index_dir: Path | None) -> GgufIndex:
    index = _read_header(path)
    if index_dir is not None:
        stored = {
            "stamp": _stamp(stat),
            "metadata": index.metadata,
            "tensors": [asdict(entry) for entry in index.tensors.values()],
        }
        target = _index_path(path, index_dir)
        scratch = target.with_suffix(f".{os.getpid()}.part")
        # A read-only or full cache folder costs the next start four seconds, no more.
        with contextlib.suppress(OSError):
            index_dir.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(stored))
            scratch.replace(target)
    return index


def _read_header(path: Path) -> GgufIndex:
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ModelError(f"{path} is not a readable GGUF file: {error}") from error
    if reader.byte_order != "I":
        raise UnsupportedModel(f"{path}: byte order differs from this machine's")
    metadata: dict[str, Scalar] = {}
    for key, field in reader.fields.items():
        if field.types and field.types[0] != gguf.GGUFValueType.ARRAY:
            value = field.contents()
            if isinstance(value, (str, bool, int, float)):
                metadata[key] = value
    tensors = {
        tensor.name: TensorEntry(
            name=tensor.name,
            kind=tensor.tensor_type.name,
            shape=tuple(int(n) for n in reversed(tensor.shape)),
            offset=int(tensor.data_offset),
            n_bytes=int(tensor.n_bytes),
        )
        for tensor in reader.tensors
    }
    return GgufIndex(metadata, tensors)
