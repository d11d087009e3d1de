"""How tokens are drawn: one frozen value, checked when it is made.

Knows nothing of models. Made by `dsl.gen` or a front end, read by the scheduler and the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from .errors import InvalidRequest

DEFAULT_MAX_TOKENS = 256
MOST_TOP_LOGPROBS = 20
LEAST_REPETITION = 0.01
MOST_REPETITION = 100.0


class Sampling(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One call's drawing rules, in the order in which they apply.

    `max_tokens` 0 prefills the prompt and draws nothing. `repetition_penalty` above 1 makes tokens
    of the prompt and of the text drawn so far less likely; `frequency_penalty` (by how often) and
    `presence_penalty` (at all) those drawn by this call alone. `logit_bias`, (id, amount), is added
    to the logits; `bias_of` makes it from a mapping. `temperature` 0 is greedy. `top_k` keeps the
    k likeliest tokens (0 or -1: all), of these `top_p` the likeliest that make up that mass, and
    `min_p` what has at least that share of the likeliest one's probability. `seed` None draws fresh
    entropy; a number makes the call repeatable, whoever shares its batch.

    `stop` ends the text at the first of its strings, `stop_token_ids` at the first of these tokens;
    what ended it is removed. `ignore_eos` draws on past the model's own end tokens, not past
    these. With `min_tokens` no end token and none of `stop_token_ids` can be drawn before so many
    others are, and a stop string that they complete is plain text.

    `logprobs` returns each drawn token's log-probability, `top_logprobs` those of so many of the
    likeliest at each position, both under the raw distribution: the model's own, at temperature 1,
    unfiltered, unpenalised and unbiased.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        """Refuse what no sampler could honour."""
        _need(self.max_tokens >= 0, "max_tokens", "0 or more", self.max_tokens)
        least_ok = 0 <= self.min_tokens <= self.max_tokens
        _need(least_ok, "min_tokens", f"from 0 to max_tokens {self.max_tokens}", self.min_tokens)
        temperature_ok = math.isfinite(self.temperature) and self.temperature >= 0
        _need(temperature_ok, "temperature", "a finite number of 0 or more", self.temperature)
        _need(self.top_k >= -1, "top_k", "0 or more, or -1 for all", self.top_k)
        _need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        _need(0 <= self.min_p <= 1, "min_p", "from 0 to 1", self.min_p)
        seed_ok = self.seed is None or 0 <= self.seed < 2**63
        _need(seed_ok, "seed", "None or between 0 and 2**63 - 1", self.seed)
        _need(all(self.stop), "stop", "non-empty strings", self.stop)
        top_ok = 0 <= self.top_logprobs <= MOST_TOP_LOGPROBS
        _need(top_ok, "top_logprobs", f"from 0 to {MOST_TOP_LOGPROBS}", self.top_logprobs)
        self._check_penalties()

    def _check_penalties(self) -> None:
        for name in ("frequency_penalty", "presence_penalty"):
            _need(-2 <= getattr(self, name) <= 2, name, "from -2 to 2", getattr(self, name))
        repetition_ok = LEAST_REPETITION <= self.repetition_penalty <= MOST_REPETITION
        expected = f"from {LEAST_REPETITION} to {MOST_REPETITION:g} (1: none)"
        _need(repetition_ok, "repetition_penalty", expected, self.repetition_penalty)
        for token, amount in self.logit_bias:
            _need(math.isfinite(amount), f"logit_bias of token {token}", "finite", amount)
        ids = [token for token, _ in self.logit_bias]
        _need(len(set(ids)) == len(ids), "logit_bias", "one amount a token", self.logit_bias)


def bias_of(amounts: Mapping[int | str, float]) -> tuple[tuple[int, float], ...]:
    """`Sampling.logit_bias` from a mapping of token ids; JSON's keys are the ids as strings.

    Raises InvalidRequest that names the id or the amount which is none, or the id given twice.
    Whether the model has the token is for the front end to say.
    """
    found: dict[int, float] = {}
    for key, amount in amounts.items():
        whole = isinstance(key, int) and not isinstance(key, bool)
        if isinstance(key, str) and len(key) < 20 and key.isascii():
            whole = key.removeprefix("-").isdigit()
        _need(whole, "logit_bias", "a mapping of token ids to numbers", key)
        token = int(key)
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        _need(number, f"logit_bias of token {token}", "a number", amount)
        _need(token not in found, "logit_bias", f"one amount for token {token}", amounts)
        found[token] = float(amount)
    return tuple(found.items())


def _need(ok: bool, name: str, expected: str, found: object) -> None:
    if not ok:
        raise InvalidRequest(f"{name} must be {expected}, found {found!r}")
