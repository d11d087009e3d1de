"""One Hugging Face model folder: its config and its safetensors, one file or shards.

Reads the JSON files and maps tensors; knows no model and interprets nothing. Called by `open.py`
and `weights.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from ...lang.errors import ModelError, UnsupportedModel

SINGLE = "model.safetensors"
SHARDS = "model.safetensors.index.json"


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...


class _TensorFile(Protocol):
    """What we use of safetensors' handle, which carries no types."""

    def keys(self) -> Iterable[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class HfFolder:
    """Read access to one folder. Keeps its tensor files mapped for as long as the object lives."""

    def __init__(self, path: Path) -> None:
        """Open the folder; no tensor is read yet."""
        self.path = path
        self.config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self.generation = read_json(generation) if generation.exists() else {}
        self._files = {name: _open(path / name) for name in self._file_names()}
        self._owner = {key: name for name, file in self._files.items() for key in file.keys()}  # noqa: SIM118, not a dict

    def _file_names(self) -> list[str]:
        if (self.path / SINGLE).exists():
            return [SINGLE]
        if not (self.path / SHARDS).exists():
            raise UnsupportedModel(
                f"{self.path}: expected {SINGLE} or {SHARDS}; other weight formats are not read, "
                "save the model with save_pretrained"
            )
        weight_map = read_json(self.path / SHARDS).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{self.path / SHARDS}: no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name or not (self.path / name).is_file():
                raise ModelError(
                    f"{self.path}: {SHARDS} names the file {name!r}, which is not there; "
                    "fetch the model again"
                )
        return names

    def names(self) -> tuple[str, ...]:
        """All tensor names, as the files spell them."""
        return tuple(self._owner)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._files[self._owner[name]].get_slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        """A tensor in its stored dtype; may share the mapped file's memory, so copy to keep it."""
        return self._files[self._owner[name]].get_tensor(name)


def _open(path: Path) -> _TensorFile:
    try:
        return cast(_TensorFile, safe_open(str(path), framework="pt"))
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a readable safetensors file: {error}") from error


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file; ModelError names the file where that fails."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
