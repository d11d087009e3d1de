"""A path becomes a model: facts first, weights when asked.

The one place that tells a GGUF file from a Hugging Face folder. Called by `runner/load.py` and by
whoever needs a model's sizes before loading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...lang.errors import UnknownModel, UnsupportedModel
from .gguf_file import GgufFile
from .hf_folder import HfFolder
from .sources import GgufSource, HfSource, TensorSource
from .spec import ModelSpec
from .spec_gguf import spec_from_gguf
from .spec_hf import spec_from_hf


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose facts are known and whose tensors can be read from `source`."""

    spec: ModelSpec
    source: TensorSource


def open_model(path: Path, index_dir: Path | None = None) -> OpenModel:
    """Open a `.gguf` file or a folder with `config.json` and safetensors.

    `index_dir` keeps the GGUF header index (None: parse the header each time, seconds). Raises
    UnknownModel where nothing is there, UnsupportedModel where it is nothing we run, ModelError
    where it is broken.
    """
    if path.is_dir():
        folder = HfFolder(path)
        spec = spec_from_hf(folder.config, folder.generation, str(path))
        return OpenModel(spec, HfSource(folder, spec))
    if not path.is_file():
        raise UnknownModel(f"no model at {path}: expected a .gguf file or a folder")
    if path.suffix != ".gguf":
        raise UnsupportedModel(f"{path}: expected a .gguf file or a Hugging Face folder")
    file = GgufFile(path, index_dir)
    shapes = {name: entry.shape for name, entry in file.index.tensors.items()}
    spec = spec_from_gguf(file.index.metadata, shapes, str(path))
    return OpenModel(spec, GgufSource(file, spec))
