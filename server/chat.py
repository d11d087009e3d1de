"""A conversation with a client: turns, token-exact history, undo. Prints nothing.

Each turn's prompt is the last turn's with its reply behind it, token for token, so all that was
said before is found in the cache. Knows no terminal and no engine. Used by `commands/chat.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from ..lang.calls import derive_seed
from ..lang.client import Client
from ..lang.errors import CallTimeout, EngineClosed
from ..lang.request import (
    Delta,
    Finish,
    Request,
    RoleEnd,
    RoleStart,
    Segment,
    Text,
    Tokens,
    Usage,
)
from ..lang.sampling import Sampling

REPLY_S = 3600.0
"""How long one reply may take, waiting in the engine's queue included."""

INTERRUPTED = "interrupted"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange. `reason` is the finish's, or "interrupted" (then what it cost is not known).

    `history` is the prompt of whatever follows: all segments up to and with this reply.
    """

    user: str
    reply: str
    reason: str
    usage: Usage | None
    history: tuple[Segment, ...]


class Chat:
    """A session. Not for two tasks at once."""

    def __init__(self, client: Client, sampling: Sampling, system: str = "") -> None:
        """`sampling.seed` makes the session repeatable: each reply draws by a seed of its own."""
        self._client = client
        self._sampling = sampling
        self._system = system
        self._n_asked = 0
        self.turns: list[Turn] = []

    async def ask(self, text: str, hear: Callable[[str], None]) -> Turn:
        """Say `text`, tell `hear` the reply as it comes, and return the finished turn.

        Cancelled midway, what was said until then stays in the history as an interrupted turn
        (nothing does where nothing was said). Any other error leaves the history as it was. Raises
        what the client raises, and `CallTimeout`.
        """
        asked = (*self._history(), *_message("user", text), RoleStart("assistant"))
        request = Request(segments=asked, sampling=self._next_sampling())
        said: list[Delta] = []
        try:
            async with asyncio.timeout(REPLY_S):
                finish = await self._listen(request, said, hear)
        except TimeoutError:
            raise CallTimeout(f"the reply took longer than {REPLY_S:g} s") from None
        except asyncio.CancelledError:
            if any(delta.ids for delta in said):
                self.turns.append(_interrupted(text, asked, said))
            raise
        turn = Turn(
            user=text,
            reply=finish.text,
            reason=finish.reason,
            usage=finish.usage,
            history=_after(finish),
        )
        self.turns.append(turn)
        return turn

    def undo(self) -> Turn | None:
        """Forget the last turn and return it; None where there is none. Its KV stays cached."""
        return self.turns.pop() if self.turns else None

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()

    def messages(self) -> list[dict[str, str]]:
        """All that was said, as `{"role": ..., "content": ...}`."""
        said = [("system", self._system)] if self._system else []
        for turn in self.turns:
            said += [("user", turn.user), ("assistant", turn.reply)]
        return [{"role": role, "content": content} for role, content in said]

    def _history(self) -> tuple[Segment, ...]:
        if self.turns:
            return self.turns[-1].history
        return _message("system", self._system) if self._system else ()

    def _next_sampling(self) -> Sampling:
        """Also after an undo a new seed: who asks again wants another reply."""
        sampling, n = self._sampling, self._n_asked
        self._n_asked += 1
        if sampling.seed is None:
            return sampling
        return msgspec.structs.replace(sampling, seed=derive_seed(sampling.seed, (), n))

    async def _listen(
        self, request: Request, said: list[Delta], hear: Callable[[str], None]
    ) -> Finish:
        stream = self._client.stream(request)
        try:
            async for delta in stream:
                said.append(delta)
                if delta.text:
                    hear(delta.text)
                if delta.finish is not None:
                    return delta.finish
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        raise EngineClosed("the client ended the reply without a finish; is the engine closed?")


def _message(role: str, text: str) -> tuple[Segment, ...]:
    return RoleStart(role), Text(text), RoleEnd(role)


def _after(finish: Finish) -> tuple[Segment, ...]:
    """The history behind a finished reply (`lang.request`, token-exact state)."""
    kept = (finish.kept,) if finish.kept.ids else ()
    tail = (Text(finish.tail),) if finish.tail else ()
    return finish.prompt, *kept, *tail, RoleEnd("assistant")


def _interrupted(text: str, asked: tuple[Segment, ...], said: list[Delta]) -> Turn:
    """A turn of the ids that had come. The asked segments give the same ids when sent again."""
    reply = "".join(delta.text for delta in said)
    ids = tuple(token for delta in said for token in delta.ids)
    history = (*asked, Tokens(ids, (Text(reply),)), RoleEnd("assistant"))
    return Turn(user=text, reply=reply, reason=INTERRUPTED, usage=None, history=history)
