"""The contract between who asks and who answers: Request in, Deltas out.

Text level: text and roles go in, text *and* token ids come out. Plain frozen values that cross
process borders as msgpack. Knows no tokenizer, no model, no cache. Made by `run.py` (programs) and
the servers, read by every `client.Client`.

Token-exact state: after a call, `Finish.prompt` is the whole prompt as one `Tokens` segment. The
asker puts it in place of the segments it sent, then appends `Finish.kept` (the generated ids) and,
where a stop string cut a token in two, a `Text` of `Finish.tail`. What was tokenised once is thus
never tokenised again, and the next call's prompt extends this one's token for token.

gc=False: these values hold only each other, never a cycle, and a batch keeps very many; walking
them in every collection took as long as running the programs.
"""

from __future__ import annotations

import msgspec

from .sampling import Sampling


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Plain text. What looks like a control token in it stays plain text."""

    text: str


class RoleStart(msgspec.Struct, frozen=True, gc=False, tag="role_start"):
    """A message of `role` ("system", "user", "assistant", ...) opens here."""

    role: str


class RoleEnd(msgspec.Struct, frozen=True, gc=False, tag="role_end"):
    """The open message ends here."""

    role: str


class Tokens(msgspec.Struct, frozen=True, gc=False, tag="tokens"):
    """Ids that are settled. `source` says what they were made from (generated: their text)."""

    ids: tuple[int, ...]
    source: tuple[Text | RoleStart | RoleEnd, ...] = ()


Segment = Text | RoleStart | RoleEnd | Tokens

METHODS = ("total", "token_mean", "byte_mean", "greedy_token", "unconditional")
"""How a choice may be scored; `choose` says what each means."""


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One call.

    With `choices` the call scores them as continuations of the prompt and picks one by `method`;
    `sampling` is then ignored. `logprobs_from` asks for the log-probability of every prompt token
    from that position on (0 means all; the first token has none). `namespace` separates caches.
    `id` may be chosen by the caller and must not be live already.
    """

    segments: tuple[Segment, ...]
    sampling: Sampling = Sampling()
    choices: tuple[str, ...] = ()
    method: str = "total"
    logprobs_from: int | None = None
    namespace: str = ""
    id: str | None = None


class Usage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a call cost, in tokens, and when its first token came.

    `cached_tokens` of the prompt came from the radix tree. `computed_tokens` went through the
    model for this call, prompt, choices and drawn tokens together, and recomputation after a
    retraction counts again. `completion_tokens` were drawn or, of these, `forced_tokens` followed
    from a grammar. Times are seconds since the call reached the client.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    time_to_first_token: float = 0.0
    seconds: float = 0.0


class Likely(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One of the likeliest tokens of a position. A part of a character reads as U+FFFD."""

    id: int
    text: str
    logprob: float


class ChoiceScore(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How one choice did, by every method (`choose` defines them); higher is better.

    All are natural-log probabilities but `greedy_token`, a number of tokens, and `probability`, the
    softmax of the totals. `unconditional` costs a second pass: None unless it was the method asked.
    """

    text: str
    total: float
    token_mean: float
    byte_mean: float
    greedy_token: int
    unconditional: float | None = None
    token_logprobs: tuple[float, ...]
    probability: float


class Finish(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The last word on a call.

    `reason` is "stop" (end token, stop string `stop`, or a choice was made), or "length".
    `text` is the whole value. `prompt` + `kept` + `tail` continue the asker's state (module
    docstring). `logprobs` and `top_logprobs` (each position's likeliest tokens, best first) belong
    to the drawn tokens `token_ids` (an end token included, a cut-off stop string too);
    `prompt_logprobs` has None for a token without one. `winner` and `scores`
    belong to choices.
    """

    reason: str
    text: str
    prompt: Tokens
    kept: Tokens
    tail: str = ""
    stop: str | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[Likely, ...], ...] | None = None
    prompt_logprobs: tuple[float | None, ...] | None = None
    winner: int | None = None
    scores: tuple[ChoiceScore, ...] = ()
    usage: Usage = Usage()


class Delta(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A piece of the answer. Joined `text` equals the finish's text; `finish` ends the stream."""

    text: str = ""
    ids: tuple[int, ...] = ()
    finish: Finish | None = None
