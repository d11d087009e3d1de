"""From a program's instruction to a Request, and from the Finish to the variable's value.

Pure but for the warning about a text that the default length cut off. Knows no client and no task.
Called by `run`, one object a run.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

from . import ir
from . import request as wire
from .options import SHARED
from .sampling import DEFAULT_MAX_TOKENS, Sampling
from .settings import Settings
from .slot import Slot


class CutWarning(UserWarning):
    """A text was cut off by the default `max_tokens`, which the program never chose."""


def derive_seed(seed: int, path: tuple[int, ...], call: int, sample: int = 0) -> int:
    """The seed of one call, from the user's and the call's place: siblings differ, repeats agree.

    `path` is the branch (empty for the root, then fork and branch number a level), `call` counts
    the branch's calls from 0, `sample` those of one call. In [0, 2**63).
    """
    key = f"{seed}:{','.join(map(str, path))}:{call}:{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


class Calls:
    """The calls of one run. `warned`: call sites warned about already; the program shares it."""

    def __init__(self, settings: Settings, warned: set[str]) -> None:
        """`settings` hold where a call says nothing."""
        self._settings = settings
        self._warned = warned

    def requests(
        self, node: ir.Call, slot: Slot, prompt: tuple[wire.Segment, ...]
    ) -> tuple[wire.Request, ...]:
        """What to ask the client, one request a sample.

        They share all of the prompt, so an engine computes it once; each draws by its own seed.
        """
        namespace = self._settings.namespace
        if isinstance(node, ir.Select):
            select = wire.Request(
                segments=prompt, choices=node.choices, method=node.method, namespace=namespace
            )
            return (select,)
        samplings = (self._sampling(node, slot, sample) for sample in range(node.n))
        return tuple(
            wire.Request(segments=prompt, sampling=sampling, namespace=namespace)
            for sampling in samplings
        )

    def value(self, node: ir.Call, finishes: tuple[wire.Finish, ...]) -> Any:
        """What the variable is: with several samples a list, the first of which goes on."""
        if isinstance(node, ir.Select) and node.values:
            return node.values[node.choices.index(finishes[0].text)]
        texts = [finish.text for finish in finishes]
        return texts if len(texts) > 1 else texts[0]

    def limit(self, node: ir.Node) -> float:
        """The longest the call may take, in seconds."""
        own = node.timeout if isinstance(node, ir.Gen | ir.Select) else None
        return self._settings.timeout if own is None else own

    def warn_if_cut(self, node: ir.Call, finish: wire.Finish) -> None:
        """Warn, once a line, where a length that nobody chose cut the text off."""
        if finish.reason != "length" or not isinstance(node, ir.Gen):
            return
        chosen = node.max_tokens is not None or self._settings.max_tokens is not None
        if chosen or node.where in self._warned:
            return
        self._warned.add(node.where)
        file, _, line = node.where.rpartition(":")
        warnings.warn_explicit(
            f"[{node.where}] {node.name or 'gen'} was cut off at the default of "
            f"{DEFAULT_MAX_TOKENS} tokens; give max_tokens to choose the length",
            CutWarning,
            file or "program",
            int(line or 0),
        )

    def _sampling(self, node: ir.Gen, slot: Slot, sample: int) -> Sampling:
        settings = self._settings
        seed = settings.seed if node.seed is None else node.seed
        if seed is not None:
            seed = derive_seed(seed, slot.place.path(), slot.index, sample)
        shared = {}
        for name in SHARED:
            own, default = getattr(node, name), getattr(settings, name)
            if own is not None or default is not None:
                shared[name] = default if own is None else own
        return Sampling(
            min_tokens=node.min_tokens,
            logit_bias=node.logit_bias,
            stop=node.stop,
            stop_token_ids=node.stop_token_ids,
            ignore_eos=node.ignore_eos,
            logprobs=node.logprobs,
            top_logprobs=node.top_logprobs,
            seed=seed,
            **shared,
        )
