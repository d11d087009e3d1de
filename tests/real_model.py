"""The real model, loaded once, and engines over it that are made in milliseconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from branchwork.backend.build import find_model, load_tokenizer, scratch_folder
from branchwork.backend.config import SchedulerConfig
from branchwork.backend.inprocess import InProcessPort
from branchwork.backend.model.open import open_model
from branchwork.backend.model.spec import ModelSpec
from branchwork.backend.model.weights import Weights, load_weights
from branchwork.backend.runner.load import make_runner, torch_dtype
from branchwork.backend.sched.scheduler import Scheduler
from branchwork.backend.text.chat import ChatFormat
from branchwork.backend.text.frontend import Frontend
from branchwork.backend.text.stops import watch_factory
from branchwork.backend.text.tokenizer import Tokenizer
from branchwork.radix.cache import PrefixCache


@dataclass
class Served:
    """An engine without the face: what tests want to look into."""

    client: Frontend
    port: InProcessPort
    scheduler: Scheduler


@dataclass(frozen=True)
class RealModel:
    path: Path
    spec: ModelSpec
    weights: Weights
    tokenizer: Tokenizer

    @contextlib.contextmanager
    def serve(self, n_pages: int, config: SchedulerConfig) -> Iterator[Served]:
        """A float32 engine with a pool of `n_pages`; every page must be back at the end."""
        runner = make_runner(self.spec, self.weights, n_pages, config.page_size)
        cache = PrefixCache(n_pages, config.page_size)
        scheduler = Scheduler(cache, config, watch_factory(self.tokenizer))
        port = InProcessPort(scheduler, runner)
        chat = ChatFormat.of(self.tokenizer)
        client = Frontend(port, self.tokenizer, chat, self.spec.context_length, self.spec.vocab)
        try:
            yield Served(client, port, scheduler)
            stats = scheduler.stats()
            assert stats.running == stats.waiting == stats.leased_pages == 0
            cache.audit()
        finally:
            port.close()


def load_real_model() -> RealModel:
    path = find_model("smollm2", lambda _stage, _done, _total: None)
    scratch = scratch_folder(path)
    tokenizer = load_tokenizer(path, scratch)
    model = open_model(path, scratch)
    weights = load_weights(model.spec, model.source, torch_dtype("float32"))
    return RealModel(path, model.spec, weights, tokenizer)
