"""A scripted Client, for tests of programs: no model, the same answer every time.

A token is one character (its id is the code point; role markers and the end token have ids above
them). The text is a pure function of the prompt, by default of its hash. Keeps the `client.Client`
contract: token-exact prompts, stop strings, limits, cancelling, errors. Of `top_logprobs` it gives
the drawn token's own; what moves a distribution, `min_tokens` and `stop_token_ids` are not minded.
Knows no program.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping

import msgspec

from . import choose
from .errors import EngineClosed, InvalidRequest
from .request import Delta, Finish, Likely, Request, RoleEnd, RoleStart, Text, Tokens, Usage

END_ID = 0x110000
ROLE_END_ID = 0x110001
ROLE_OPEN_ID = 0x110002
ROLE_NAMED_ID = 0x110003

CLOSE_POLL_S = 0.02
"""How soon a delayed call notices that the client was closed."""

Script = Callable[[str, Request], str] | Mapping[str, str | Exception]
Scorer = Callable[[str, str], tuple[float, ...]]


def default_text(prompt: str, request: Request) -> str:
    """3 to 12 letters and spaces: a function of the prompt and, at a temperature, the seed."""
    drawn = request.sampling.temperature > 0
    digest = _digest(prompt, str(request.sampling.seed) if drawn else "")
    return "".join("abcdefghijklm nop"[byte % 17] for byte in digest[1 : 4 + digest[0] % 10])


def default_scores(prompt: str, choice: str) -> tuple[float, ...]:
    """One log-probability a character, a function of prompt and choice."""
    digest = _digest(prompt, choice)
    return tuple(-0.05 - digest[i % len(digest)] / 64 for i in range(len(choice)))


class MockClient:
    """Answers from a script.

    `script`: a function (prompt text, request) -> text, whose exceptions become the call's; or a
    mapping from how the prompt ends to the text, or to an exception (the longest end wins;
    `default_text` answers the rest). In the prompt text a role stands as "<|user|>" and "<|end|>".
    `scorer`: (prompt text, choice) -> a log-probability a character; the text is "" where a choice
    is scored without its prompt. `delay`: seconds before a call
    answers. `delta_tokens`: tokens a delta; None sends all at once. `cache`: report as cached what
    an earlier call's tokens share, as an engine would. `keep`: how many of the newest requests stay
    in `requests`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        scorer: Scorer = default_scores,
        delay: float = 0.0,
        delta_tokens: int | None = None,
        cache: bool = False,
        keep: int = 10_000,
    ) -> None:
        """Live until `aclose`."""
        self._script: Script = default_text if script is None else script
        self._scorer = scorer
        self._delay = delay
        self._delta_tokens = delta_tokens
        self._tries: dict[str, _Trie] | None = {} if cache else None
        self._closed = False
        self.requests: deque[Request] = deque(maxlen=keep)
        self.open_streams = 0
        """Streams begun and not yet over; 0 when nothing is live."""
        self.most_open = 0
        self.n_calls = 0
        self.n_cancelled = 0

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Deltas of one call. `InvalidRequest` for an empty prompt, as a model needs a token."""
        if self._closed:
            raise EngineClosed("the mock client is closed")
        self.requests.append(request)
        self.n_calls += 1
        self.open_streams += 1
        self.most_open = max(self.most_open, self.open_streams)
        ended = False
        try:
            started = time.perf_counter()
            await self._wait()
            if self._closed:
                raise EngineClosed("the mock client was closed while the call was waiting")
            finish = self._answer(request, started)
            for delta in self._deltas(finish):
                ended = delta.finish is not None
                yield delta
                if not ended:
                    await asyncio.sleep(0)
        except Exception:
            ended = True
            raise
        finally:
            self.open_streams -= 1
            self.n_cancelled += not ended

    async def aclose(self) -> None:
        """Refuse calls from now on; those that wait end with `EngineClosed`."""
        self._closed = True

    async def _wait(self) -> None:
        """At least one turn of the loop; ends early when the client is closed."""
        await asyncio.sleep(0)
        if self._delay:
            clock = asyncio.get_running_loop().time
            until = clock() + self._delay
            while not self._closed and (left := until - clock()) > 0:
                await asyncio.sleep(min(left, CLOSE_POLL_S))

    def _answer(self, request: Request, started: float) -> Finish:
        prompt = settle(request)
        if not prompt.ids:
            raise InvalidRequest("the prompt is empty: expected at least one token")
        text = render(prompt)
        cached = self._cached(request.namespace, prompt.ids)
        if request.choices:
            finish = self._choose(request, prompt, text)
        else:
            finish = _draw(request, prompt, self._text(text, request))
        self._commit(request.namespace, prompt.ids + finish.kept.ids)
        n, seconds = len(prompt.ids), time.perf_counter() - started
        scored = sum(len(choice) for choice in request.choices)
        usage = Usage(
            prompt_tokens=n,
            cached_tokens=cached,
            computed_tokens=n - cached + scored + max(0, len(finish.token_ids) - 1),
            completion_tokens=len(finish.token_ids),
            time_to_first_token=seconds,
            seconds=seconds,
        )
        return msgspec.structs.replace(finish, usage=usage)

    def _text(self, prompt: str, request: Request) -> str:
        if callable(self._script):
            return self._script(prompt, request)
        ends = [end for end in self._script if prompt.endswith(end)]
        if not ends:
            return default_text(prompt, request)
        found = self._script[max(ends, key=len)]
        if isinstance(found, Exception):
            raise found
        return found

    def _choose(self, request: Request, prompt: Tokens, text: str) -> Finish:
        logprobs = [self._scorer(text, choice) for choice in request.choices]
        n_bytes = tuple(map(choose.n_bytes, request.choices))
        priors: tuple[float, ...] = ()
        if request.method == "unconditional":
            priors = choose.totals([self._scorer("", choice) for choice in request.choices])
        winner = choose.pick(request.method, logprobs, n_bytes, priors)
        value = request.choices[winner]
        return Finish(
            reason="stop",
            text=value,
            prompt=prompt,
            kept=_tokens(value),
            winner=winner,
            scores=choose.scores(request.choices, logprobs, priors),
        )

    def _deltas(self, finish: Finish) -> list[Delta]:
        size = self._delta_tokens
        if size is None:
            return [Delta(text=finish.text, ids=finish.kept.ids, finish=finish)]
        text = finish.text
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        deltas = [Delta(text=part, ids=tuple(map(ord, part))) for part in parts]
        return [*deltas, Delta(finish=finish)]

    def _cached(self, namespace: str, ids: tuple[int, ...]) -> int:
        if self._tries is None or namespace not in self._tries:
            return 0
        return min(_common(self._tries[namespace], ids), len(ids) - 1)

    def _commit(self, namespace: str, ids: tuple[int, ...]) -> None:
        if self._tries is not None:
            node = self._tries.setdefault(namespace, _Trie())
            for token in ids:
                node = node.setdefault(token, _Trie())


def _common(node: _Trie, ids: tuple[int, ...]) -> int:
    for depth, token in enumerate(ids):
        below = node.get(token)
        if below is None:
            return depth
        node = below
    return len(ids)


class _Trie(dict[int, "_Trie"]):
    """Token id -> what may follow."""


def settle(request: Request) -> Tokens:
    """A request's segments as one `Tokens`: what a tokenizer of characters makes of them."""
    ids: list[int] = []
    source: list[Text | RoleStart | RoleEnd] = []
    for segment in request.segments:
        if isinstance(segment, Tokens):
            ids.extend(segment.ids)
            source.extend(segment.source)
            continue
        source.append(segment)
        if isinstance(segment, Text):
            ids.extend(map(ord, segment.text))
        elif isinstance(segment, RoleStart):
            ids += (ROLE_OPEN_ID, *map(ord, segment.role), ROLE_NAMED_ID)
        else:
            ids.append(ROLE_END_ID)
    return Tokens(tuple(ids), tuple(source))


def render(prompt: Tokens) -> str:
    """The prompt text a script is given; roles stand as "<|user|>" and "<|end|>"."""
    parts = []
    for piece in prompt.source:
        if isinstance(piece, Text):
            parts.append(piece.text)
        else:
            parts.append(f"<|{piece.role}|>" if isinstance(piece, RoleStart) else "<|end|>")
    return "".join(parts)


def cut(text: str, stop: tuple[str, ...], limit: int) -> tuple[str, str, str | None, int]:
    """What is left of `text`: (kept text, reason, stop string or None, tokens drawn).

    The first stop string to be complete ends the text; of two that end together the longer one.
    """
    found = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    if found and min(found)[0] <= limit:
        end, minus, by = min(found)
        return text[: end + minus], "stop", by, end
    if len(text) >= limit:
        return text[:limit], "length", None, limit
    return text, "stop", None, len(text) + 1


def _draw(request: Request, prompt: Tokens, text: str) -> Finish:
    sampling = request.sampling
    if sampling.ignore_eos and text:
        text *= sampling.max_tokens // len(text) + 1
    kept, reason, stop, drawn = cut(text, sampling.stop, sampling.max_tokens)
    ids = tuple(map(ord, text[:drawn])) + ((END_ID,) if drawn > len(text) else ())
    logprobs: tuple[float, ...] = ()
    if sampling.logprobs or sampling.top_logprobs:
        logprobs = tuple(-1.0 / (2 + i % 7) for i in range(drawn))
    return Finish(
        reason=reason,
        text=kept,
        prompt=prompt,
        kept=_tokens(kept),
        stop=stop,
        token_ids=ids,
        logprobs=logprobs if sampling.logprobs else None,
        top_logprobs=_likeliest(ids, logprobs) if sampling.top_logprobs else None,
    )


def _likeliest(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> tuple[tuple[Likely, ...], ...]:
    return tuple(
        (Likely(id=i, text="" if i == END_ID else chr(i), logprob=logprob),)
        for i, logprob in zip(ids, logprobs, strict=True)
    )


def _tokens(text: str) -> Tokens:
    return Tokens(tuple(map(ord, text)), (Text(text),) if text else ())


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
