"""One iterator for both worlds: `for x in it` in plain code, `async for x in it` on a loop.

Nothing begins before the first step. Leaving the loop early, or `close`, ends what runs behind it
and waits until that has let go of what it held. Knows nothing of programs. Made by `program`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Generic, TypeVar

from .errors import InvalidRequest
from .shell import Session

T = TypeVar("T")


class Iteration(Generic[T]):
    """Goes over what an async generator yields, once.

    In plain code the work goes on in a thread of its own while the loop's body runs (in a program's
    `def` body: on its loop).
    """

    def __init__(self, make: Callable[[], AsyncGenerator[T, None]]) -> None:
        """`make` is called at the first step."""
        self._make = make
        self._begun = False
        # Weak, so that leaving a `for` drops its iterator at once, which closes it.
        self._plain: weakref.ref[Generator[T, None, None]] | None = None
        self._async: weakref.ref[AsyncGenerator[T, None]] | None = None

    def __iter__(self) -> Generator[T, None, None]:
        self._begin()
        found = self._walk()
        self._plain = weakref.ref(found)
        return found

    def __aiter__(self) -> AsyncGenerator[T, None]:
        self._begin()
        found = self._make()
        self._async = weakref.ref(found)
        return found

    def close(self) -> None:
        """End a `for` over this early. Idempotent; nothing begins afterwards."""
        self._begun = True
        found = None if self._plain is None else self._plain()
        if found is not None:
            found.close()

    async def aclose(self) -> None:
        """End an `async for` over this early. Idempotent; nothing begins afterwards."""
        self._begun = True
        found = None if self._async is None else self._async()
        if found is not None:
            await found.aclose()

    def __enter__(self) -> Iteration[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Iteration[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begin(self) -> None:
        if self._begun:
            raise InvalidRequest("this was iterated over or closed already; make a new one")
        self._begun = True

    def _walk(self) -> Generator[T, None, None]:
        with Session() as session:
            source = self._make()

            async def step() -> tuple[T] | None:
                async for item in source:
                    return (item,)
                return None

            try:
                while (found := session.run(step)) is not None:
                    yield found[0]
            finally:
                session.finish(source.aclose)
