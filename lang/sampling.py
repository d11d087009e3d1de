"""How tokens are drawn: one frozen value, checked when it is made.

Knows nothing of models. Made by `dsl.gen` or a front end, read by the scheduler and the sampler.
"""

from __future__ import annotations

import math

import msgspec

from .errors import InvalidRequest

DEFAULT_MAX_TOKENS = 256


class Sampling(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One call's drawing rules.

    `max_tokens` 0 prefills the prompt and draws nothing. `temperature` 0 is greedy. `seed` None
    draws fresh entropy; a number makes the call repeatable, whoever shares its batch. `stop` ends
    the text at the first of its strings, which is removed. `ignore_eos` draws on past the model's
    own end tokens. `logprobs` returns each drawn token's log-probability under the raw
    (temperature 1, unfiltered) distribution.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self) -> None:
        """Refuse what no sampler could honour."""
        _need(self.max_tokens >= 0, "max_tokens", "0 or more", self.max_tokens)
        temperature_ok = math.isfinite(self.temperature) and self.temperature >= 0
        _need(temperature_ok, "temperature", "a finite number of 0 or more", self.temperature)
        _need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        seed_ok = self.seed is None or 0 <= self.seed < 2**63
        _need(seed_ok, "seed", "None or between 0 and 2**63 - 1", self.seed)
        _need(all(self.stop), "stop", "non-empty strings", self.stop)


def _need(ok: bool, name: str, expected: str, found: object) -> None:
    if not ok:
        raise InvalidRequest(f"{name} must be {expected}, found {found!r}")
