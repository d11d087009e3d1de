"""The text-level port: whoever can answer a Request is a Client.

In-process engine, zmq, HTTP and the scripted mock are implementations; programs cannot tell them
apart. Contracts live with the asker, so this stands in `lang`. Knows only `request`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Protocol

from .errors import EngineClosed
from .request import Delta, Finish, Request

CANCEL_S = 30.0
"""How long a client may take to let go of cancelled calls."""


class Client(Protocol):
    """Answers requests. Safe to use from several event loops and threads at once."""

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Deltas of one call; the last has `finish`.

        Closing the iterator (or cancelling the task that reads it) cancels the call and frees all
        it held. Raises a `BranchworkError` where the call cannot be served.
        """
        ...

    async def aclose(self) -> None:
        """Cancel what is live and let go of all resources. Idempotent."""
        ...


async def complete(
    client: Client, request: Request, hear: Callable[[str], None] | None = None
) -> Finish:
    """Run one call to its end and return the finish. The stream is closed, whatever happens.

    `hear` is told the text of each delta as it comes.
    """
    stream = client.stream(request)
    finish: Finish | None = None
    try:
        async for delta in stream:
            if hear is not None:
                hear(delta.text)
            finish = delta.finish or finish
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    if finish is not None:
        return finish
    raise EngineClosed("the client ended the stream without a finish; is the engine closed?")


async def complete_all(
    client: Client, requests: Sequence[Request], hear: Callable[[str], None] | None = None
) -> tuple[Finish, ...]:
    """Run calls side by side to their ends; `hear` listens to the first.

    The first failure cancels the others and is raised.
    """
    if len(requests) == 1:
        return (await complete(client, requests[0], hear),)
    ears = (hear, *[None] * (len(requests) - 1))
    tasks = [
        asyncio.create_task(complete(client, request, ear))
        for request, ear in zip(requests, ears, strict=True)
    ]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_S)
