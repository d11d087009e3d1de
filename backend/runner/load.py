"""From a model's path to a runner that is ready to step. Called by the composition root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ...lang.errors import InvalidRequest
from ..attention.reference import ReferenceAttention
from ..model.open import open_model
from ..model.registry import build_decoder
from ..model.spec import ModelSpec
from ..model.weights import Progress, Weights, load_weights
from .kv import KvPool, page_bytes
from .memory import MemoryNeed
from .runner import Runner

DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load. `dtype`: a name in `DTYPES` ("auto" is float32 on the CPU)."""

    dtype: str
    n_pages: int
    page_size: int


def read_spec(path: Path, index_dir: Path | None = None) -> ModelSpec:
    """A model's facts without its weights. See `open_model` for errors."""
    return open_model(path, index_dir).spec


def memory_need(spec: ModelSpec, dtype: str, page_size: int) -> MemoryNeed:
    """Bytes that weights and one KV page will take, for `memory.pages_for`."""
    kind = torch_dtype(dtype)
    return MemoryNeed(spec.n_parameters * kind.itemsize, page_bytes(spec, page_size, kind))


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a name; InvalidRequest lists what there is."""
    if name not in DTYPES:
        raise InvalidRequest(f"dtype must be one of {', '.join(DTYPES)}, found {name!r}")
    return DTYPES[name]


def load_runner(
    path: Path,
    options: LoadOptions,
    index_dir: Path | None = None,
    progress: Progress | None = None,
) -> Runner:
    """Read a model and make its runner on the CPU.

    `index_dir` keeps the GGUF header index between starts; `progress` is called a tensor. Raises
    what `open_model` and `load_weights` raise.
    """
    dtype = torch_dtype(options.dtype)
    model = open_model(path, index_dir)
    weights = load_weights(model.spec, model.source, dtype, progress)
    return make_runner(model.spec, weights, options.n_pages, options.page_size)


def make_runner(spec: ModelSpec, weights: Weights, n_pages: int, page_size: int) -> Runner:
    """A runner over weights that are in memory already, with the reference attention."""
    dtype, device = weights.embed.dtype, weights.embed.device
    decoder = build_decoder(spec, weights)
    pool = KvPool(spec, n_pages, page_size, dtype, device)
    return Runner(decoder, ReferenceAttention(page_size, dtype, device), pool)
