"""One program on many inputs, at most so many alive at once.

Knows programs only as something to start. Called by `program`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from .errors import Cancelled, InvalidRequest
from .progress import progress_of
from .state import State

MAX_CONCURRENCY = 256
"""Programs of a batch alive at once, unless told otherwise; bounds memory, not the engine."""

Inputs = Mapping[str, Any] | tuple[Any, ...]
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
Start = Callable[[Arguments], Coroutine[Any, Any, State]]
Outcome = tuple[int, "State | Exception"]


def checked_options(errors: str, max_concurrency: int | None) -> int:
    """How many programs may be alive at once; `InvalidRequest` for options that make no sense."""
    if errors not in ("raise", "return"):
        raise InvalidRequest(f"errors must be 'raise' or 'return', found {errors!r}")
    width = MAX_CONCURRENCY if max_concurrency is None else max_concurrency
    if not isinstance(width, int) or width < 1:
        raise InvalidRequest(
            f"max_concurrency must be a whole number of at least 1, found {max_concurrency!r}"
        )
    return width


def arguments_of(inputs: Inputs) -> Arguments:
    """An input of a batch as positional and named arguments."""
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, tuple):
        return inputs, {}
    raise InvalidRequest(
        f"an input of a batch is a dict of arguments or a tuple, found {type(inputs).__name__}"
    )


async def outcomes(
    start: Start, inputs: Iterable[Arguments], width: int
) -> AsyncGenerator[Outcome, None]:
    """(number of the input, state or exception) of each, as they finish.

    Inputs are taken as places get free: at most `width` programs run or wait here to be taken.
    Closing the generator cancels them and waits until they have let go of what they held.
    """
    todo = enumerate(inputs)
    alive: dict[asyncio.Task[State], int] = {}
    ended: deque[asyncio.Task[State]] = deque()
    news = asyncio.Event()

    def end(task: asyncio.Task[State]) -> None:
        ended.append(task)
        news.set()

    try:
        while True:
            while len(alive) < width and (item := next(todo, None)) is not None:
                task = asyncio.create_task(start(item[1]))
                alive[task] = item[0]
                task.add_done_callback(end)
            if not alive:
                return
            while not ended:
                news.clear()
                # Each call of a program has its own time limit, so this wait is bounded.
                await news.wait()
            task = ended.popleft()
            yield alive.pop(task), _result(task)
    finally:
        for task in alive:
            task.cancel()
        await asyncio.gather(*alive, return_exceptions=True)


async def strict(source: AsyncGenerator[Outcome, None]) -> AsyncGenerator[Outcome, None]:
    """The same, but the first exception is raised, and ends the rest."""
    try:
        async for index, result in source:
            if isinstance(result, Exception):
                result.add_note(f"in input {index} of the batch")
                raise result
            yield index, result
    finally:
        await source.aclose()


async def gather(source: AsyncGenerator[Outcome, None], total: int, progress: bool) -> list[Any]:
    """All results, in the order of the inputs."""
    results: list[Any] = [None] * total
    try:
        with progress_of(total, progress) as tick:
            async for index, result in source:
                results[index] = result
                tick(isinstance(result, Exception))
    finally:
        await source.aclose()
    return results


def _result(task: asyncio.Task[State]) -> State | Exception:
    if task.cancelled():
        return Cancelled("the program cancelled itself")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, Exception):
        return error
    raise error
