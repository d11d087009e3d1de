"""Programs: a Python function whose first argument is the state, and the ways to run it.

The core is `arun`; `run` and `run_batch` are the same behind the blocking shell. Knows clients only
through `client_of`. This is what users import.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, overload

import msgspec

from . import bridge, shell
from .client import Client
from .defaults import default_engine
from .errors import InvalidRequest
from .run import Run
from .settings import Settings
from .state import State

MAX_CONCURRENCY = 256
"""Programs of a batch alive at once, unless told otherwise; bounds memory, not the engine."""


class HasClient(Protocol):
    """An engine, as far as programs care."""

    @property
    def client(self) -> Client:
        """Who answers the requests."""
        ...


Engine = Client | HasClient
Body = Callable[..., Any]
Inputs = Mapping[str, Any] | tuple[Any, ...]


def client_of(engine: Engine | None) -> Client:
    """The client behind `engine`, or behind the default engine for None."""
    found: object = default_engine() if engine is None else engine
    client = getattr(found, "client", found)
    if not callable(getattr(client, "stream", None)):
        raise InvalidRequest(f"engine must be an engine or a client, found {type(found).__name__}")
    return cast(Client, client)


class Program:
    """A function that calls a model. Call it with a state to use it inside another program."""

    def __init__(self, body: Body, settings: Settings | None = None) -> None:
        """`body` is a `def` or `async def` whose first parameter is the state."""
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise InvalidRequest(f"{body.__name__} is a generator; a program is a def or async def")
        self._signature = inspect.signature(body)
        parameters = list(self._signature.parameters)
        if not parameters:
            raise InvalidRequest(f"{body.__name__} must take the state as its first parameter")
        if "engine" in parameters:
            raise InvalidRequest(f"{body.__name__}: the parameter name 'engine' is taken by run")
        self._body = body
        self._is_async = inspect.iscoroutinefunction(body)
        self._warned: set[str] = set()
        self.settings = settings or Settings()
        functools.update_wrapper(self, body)

    def __call__(self, state: State, *args: Any, **kwargs: Any) -> Any:
        """Run the body on a state of another program, as a plain function call."""
        return self._body(state, *args, **kwargs)

    def using(self, **changes: Any) -> Program:
        """The same program with other settings: `triage.using(seed=1).run(...)`. See `Settings`."""
        try:
            settings = msgspec.structs.replace(self.settings, **changes)
        except TypeError:
            known = ", ".join(Settings.__struct_fields__)
            raise InvalidRequest(
                f"a program's settings are {known}; found {list(changes)}"
            ) from None
        return Program(self._body, settings)

    def run(self, *args: Any, engine: Engine | None = None, **kwargs: Any) -> State:
        """Run to the end and return the state; arguments are the body's own.

        Returns when all is done: every call, in every branch. Raises what the body raised, or one
        `ProgramError` for the first call that failed. Works inside a running loop (then it blocks
        that loop) and in another program's body (then it does not). Ctrl-C cancels and frees.
        """
        self._bind(args, kwargs)
        client = client_of(engine)
        return shell.run(lambda: self._execute(client, args, kwargs))

    async def arun(self, *args: Any, engine: Engine | None = None, **kwargs: Any) -> State:
        """As `run`, on the loop of the caller."""
        self._bind(args, kwargs)
        return await self._execute(client_of(engine), args, kwargs)

    @overload
    def run_batch(
        self,
        inputs: Sequence[Inputs],
        *,
        engine: Engine | None = None,
        progress: bool = False,
        max_concurrency: int | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[State]: ...

    @overload
    def run_batch(
        self,
        inputs: Sequence[Inputs],
        *,
        engine: Engine | None = None,
        progress: bool = False,
        max_concurrency: int | None = None,
        errors: Literal["return"],
    ) -> list[State | Exception]: ...

    def run_batch(
        self,
        inputs: Sequence[Inputs],
        *,
        engine: Engine | None = None,
        progress: bool = False,
        max_concurrency: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[State] | list[State | Exception]:
        """Run once for each input (a dict of arguments, or a tuple); states in input order.

        At most `max_concurrency` programs are alive at once. `progress` counts them on stderr. With
        errors="raise" the first error cancels the rest and is raised; with "return" an exception
        stands in the failed one's place. All inputs are checked before the first run.
        """
        if errors not in ("raise", "return"):
            raise InvalidRequest(f"errors must be 'raise' or 'return', found {errors!r}")
        width = MAX_CONCURRENCY if max_concurrency is None else max_concurrency
        if width < 1:
            raise InvalidRequest(f"max_concurrency must be at least 1, found {max_concurrency!r}")
        calls = [_split(each) for each in inputs]
        for args, kwargs in calls:
            self._bind(args, kwargs)
        if not calls:
            return []
        batch = _Batch(self, client_of(engine), calls, errors == "raise", progress)
        return shell.run(lambda: batch.run(width))

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            name = getattr(self._body, "__name__", "program")
            raise InvalidRequest(f"{name}{self._signature}: {error}") from None

    async def _execute(
        self, client: Client, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> State:
        run = Run(client, self.settings, self._warned)
        state = State(run, run.root)
        body = functools.partial(self._body, state, *args, **kwargs)
        try:
            if self._is_async:
                state.returned = await body()
            else:
                state.returned = await bridge.drive(body)
            await run.finish()
        except BaseException as error:
            await run.abort()
            for other in run.untold():
                if other is not error:
                    error.add_note(f"also failed: {other}")
            raise
        return state


class _Batch:
    """Workers that take inputs in order; as many as may be alive at once."""

    def __init__(
        self,
        program: Program,
        client: Client,
        calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]],
        strict: bool,
        progress: bool,
    ) -> None:
        self._program = program
        self._client = client
        self._todo = iter(enumerate(calls))
        self._results: list[Any] = [None] * len(calls)
        self._strict = strict
        self._progress = progress
        self._done = 0

    async def run(self, width: int) -> list[Any]:
        width = min(width, len(self._results))
        workers = [asyncio.create_task(self._work()) for _ in range(width)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            if self._progress:
                sys.stderr.write("\n")
        return self._results

    async def _work(self) -> None:
        for index, (args, kwargs) in self._todo:
            try:
                self._results[index] = await self._program._execute(self._client, args, kwargs)
            except Exception as error:
                if self._strict:
                    error.add_note(f"in input {index} of the batch")
                    raise
                self._results[index] = error
            self._done += 1
            if self._progress:
                sys.stderr.write(f"\r{self._done}/{len(self._results)} programs")
                sys.stderr.flush()


def _split(inputs: Inputs) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, tuple):
        return inputs, {}
    raise InvalidRequest(
        f"an input of a batch is a dict of arguments or a tuple, found {type(inputs).__name__}"
    )


@overload
def program(body: Body, /) -> Program: ...


@overload
def program(
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    namespace: str = "",
) -> Callable[[Body], Program]: ...


def program(
    body: Body | None = None,
    /,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    namespace: str = "",
) -> Program | Callable[[Body], Program]:
    """Make a program of a function: `@program`, or `@program(temperature=0.7)` with defaults.

    The defaults hold for every `gen` that does not say otherwise; see `Settings`.
    """
    settings = Settings(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        namespace=namespace,
    )
    if body is not None:
        return Program(body, settings)
    return lambda function: Program(function, settings)
