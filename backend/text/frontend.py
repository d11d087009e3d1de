"""A Client made from an EnginePort: text and roles in, token ids through, text out.

Knows no scheduler, no cache and no model: only the two ports and this room. Made by `build.py` (and
by the API process of a server), called by programs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec

from ...lang.choose import totals
from ...lang.errors import Cancelled, EngineClosed, InvalidRequest, PromptTooLong, from_wire
from ...lang.request import Delta, Request, Tokens, Usage
from ...lang.sampling import Sampling
from ...radix.key import pack
from ..port import End, EnginePort, Job, Rules, Update
from .answer import Drawn, chosen, end_ids
from .chat import ChatFormat
from .layout import lay_out
from .select import Choices, bare_prompt, check_choices, empty_prompt, plan_choices
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the engine will see it. `prompt` holds the job's ids and their sources."""

    job: Job
    prompt: Tokens
    choices: Choices | None


class Frontend:
    """Implements `lang.client.Client`. Holds nothing of a call between calls."""

    def __init__(
        self,
        port: EnginePort,
        tokenizer: Tokenizer,
        chat: ChatFormat,
        context: int,
        vocab: int | None = None,
    ) -> None:
        """`context`: most tokens a sequence may have, prompt and drawn ones together.

        `vocab`: ids the model has an embedding for, from 0 (None: the tokenizer's).
        """
        self._port = port
        self._tokenizer = tokenizer
        self._chat = chat
        self._context = context
        self._vocab = tokenizer.vocab_size if vocab is None else vocab

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Deltas of one call; see `lang.client.Client`."""
        clock = _Clock()
        prepared = self.prepare(request)
        if prepared.choices is not None:
            prepared, spent = await self._with_priors(prepared)
            assert prepared.choices is not None
            scored = await self._run_choices(prepared.job)
            usage = clock.usage(len(prepared.prompt.ids), 0, scored)
            usage = msgspec.structs.replace(usage, computed_tokens=usage.computed_tokens + spent)
            yield chosen(prepared.choices, prepared.prompt, request, scored, usage)
            return
        drawn = Drawn(self._tokenizer, prepared.prompt, request)
        end: End | None = None
        async with _closing(self._port.submit(prepared.job)) as updates:
            async for update in updates:
                _raise_if_failed(update.end)
                if update.tokens:
                    if drawn.over:
                        break  # the engine draws past a stop that it does not see: cancel it
                    clock.first()
                    delta = drawn.push(update)
                    if delta.ids:
                        yield delta
                if update.end is not None:
                    end = update.end
                    break
        if end is None and not drawn.over:
            raise _no_end()
        end = end or End(reason="stop")
        yield drawn.finish(end, clock.usage(len(prepared.prompt.ids), drawn.n_tokens, end))

    async def aclose(self) -> None:
        """Close the engine port: live calls end with `EngineClosed`. Idempotent."""
        await self._port.aclose()

    def prepare(self, request: Request) -> Prepared:
        """Tokenise a request and check it against this model's limits.

        Raises InvalidRequest, TemplateError or PromptTooLong. Touches no engine.
        """
        if request.choices:
            check_choices(request.choices, request.method)
        layout = lay_out(request.segments, self._tokenizer, self._chat)
        choices = None
        if request.choices:
            choices = plan_choices(layout, request.choices, request.method, self._tokenizer)
        ids = layout.ids(self._tokenizer) if choices is None else choices.prompt
        if not ids:
            raise empty_prompt()
        if not 0 <= min(ids) <= max(ids) < self._vocab:  # only ids the asker sent can be
            raise InvalidRequest(
                f"token ids must be from 0 to {self._vocab - 1}, found {min(ids)} to {max(ids)}"
            )
        room = self._room(len(ids), 1 if choices is None else choices.depth)
        start = request.logprobs_from
        if start is not None and not 0 <= start <= len(ids):
            raise InvalidRequest(
                f"logprobs_from must be from 0 to the prompt's {len(ids)} tokens, found {start}"
            )
        if choices is None:
            self._check_ids(request.sampling)
        job = self._job(request, pack(ids), choices, room)
        return Prepared(job, Tokens(tuple(ids), layout.source), choices)

    def _job(self, request: Request, prompt: bytes, choices: Choices | None, room: int) -> Job:
        job = Job(
            id=secrets.token_hex(8) if request.id is None else request.id,
            prompt=prompt,
            max_tokens=0,
            seed=0,
            logprobs_from=request.logprobs_from,
            namespace=request.namespace,
        )
        if choices is not None:
            return msgspec.structs.replace(job, trie=choices.trie)
        sampling = request.sampling
        return msgspec.structs.replace(
            job,
            max_tokens=min(sampling.max_tokens, room),
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            rules=rules_of(sampling),
            end_ids=end_ids(self._tokenizer, sampling),
            stop=sampling.stop,
            min_tokens=sampling.min_tokens,
            logprobs=sampling.logprobs,
            top_logprobs=sampling.top_logprobs,
        )

    def _check_ids(self, sampling: Sampling) -> None:
        """Refuse ids the model does not have, and a call that could draw no token at all."""
        biased = [token for token, _ in sampling.logit_bias]
        for name, ids in (("logit_bias", biased), ("stop_token_ids", sampling.stop_token_ids)):
            for token in ids:
                if not 0 <= token < self._vocab:
                    raise InvalidRequest(
                        f"{name}: {token} is no token of this model; expected ids from 0 to "
                        f"{self._vocab - 1}"
                    )
        if sampling.min_tokens and len(end_ids(self._tokenizer, sampling)) >= self._vocab:
            raise InvalidRequest("min_tokens: every token of the model ends the text")

    def _room(self, n_prompt: int, n_needed: int) -> int:
        """Tokens that may follow the prompt; refuses a prompt that leaves fewer than needed."""
        room = self._context - n_prompt
        if room < n_needed:
            need = "one more" if n_needed == 1 else f"{n_needed} more for the longest choice"
            raise PromptTooLong(
                f"the prompt has {n_prompt} tokens and needs room for {need}, but the model's "
                f"context is {self._context} tokens; shorten the prompt"
            )
        return room

    async def _with_priors(self, prepared: Prepared) -> tuple[Prepared, int]:
        """Score the choices without their prompt first, where the method asks for it.

        The job's trie then carries the totals, so that the engine can tell the winner as for any
        other method. Also how many tokens that took.
        """
        choices = prepared.choices
        if choices is None or choices.trie.method != "unconditional":
            return prepared, 0
        bare = msgspec.structs.replace(
            prepared.job,
            id=secrets.token_hex(8),
            prompt=pack(bare_prompt(self._tokenizer)),
            trie=msgspec.structs.replace(choices.trie, method="total"),
            logprobs_from=None,
        )
        end = await self._run_choices(bare)
        priors = totals(choices.logprobs(end.node_logprobs))
        trie = msgspec.structs.replace(choices.trie, priors=priors)
        job = msgspec.structs.replace(prepared.job, trie=trie)
        informed = replace(prepared, job=job, choices=replace(choices, trie=trie))
        return informed, end.computed_tokens

    async def _run_choices(self, job: Job) -> End:
        async with _closing(self._port.submit(job)) as updates:
            async for update in updates:
                _raise_if_failed(update.end)
                if update.end is not None:
                    return update.end
        raise _no_end()


def rules_of(sampling: Sampling) -> Rules:
    """What of it the sampler needs."""
    return Rules(
        temperature=sampling.temperature,
        top_k=max(0, sampling.top_k),
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
    )


@asynccontextmanager
async def _closing(updates: AsyncIterator[Update]) -> AsyncIterator[AsyncIterator[Update]]:
    """Close the iterator on every way out: that is how a job is cancelled."""
    try:
        yield updates
    finally:
        close = getattr(updates, "aclose", None)
        if close is not None:
            await close()


def _raise_if_failed(end: End | None) -> None:
    if end is None or end.reason in ("stop", "length"):
        return
    if end.error is not None:
        raise from_wire(*end.error)
    raise Cancelled("the call was cancelled")


def _no_end() -> EngineClosed:
    return EngineClosed("the engine ended the call without a result; is it closed?")


class _Clock:
    """Seconds since a call reached the client."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: float | None = None

    def first(self) -> None:
        """The first token is here."""
        if self._first is None:
            self._first = time.perf_counter() - self._start

    def usage(self, n_prompt: int, n_drawn: int, end: End) -> Usage:
        """What the call cost."""
        seconds = time.perf_counter() - self._start
        return Usage(
            prompt_tokens=n_prompt,
            cached_tokens=end.cached_tokens,
            computed_tokens=end.computed_tokens,
            completion_tokens=n_drawn,
            time_to_first_token=seconds if self._first is None else self._first,
            seconds=seconds,
        )
