"""Programs: a Python function whose first argument is the state, and the ways to run it.

The core is `arun`; `run` and `run_batch` are the same behind the blocking shell. Knows clients only
through `client_of`. This is what users import.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, overload

import msgspec

from . import batch, bridge, shell
from .batch import Arguments, Inputs, Outcome
from .calls import Calls
from .client import Client
from .defaults import default_engine
from .errors import InvalidRequest
from .feed import Feed
from .iteration import Iteration
from .run import Run
from .settings import DEFAULT_TIMEOUT_S, Settings
from .state import State
from .stream import Stream


class HasClient(Protocol):
    """An engine, as far as programs care."""

    @property
    def client(self) -> Client:
        """Who answers the requests."""
        ...


Engine = Client | HasClient
Body = Callable[..., Any]


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
        if not callable(body) or isinstance(body, type):
            raise InvalidRequest(f"a program is a def or async def function, found {body!r}")
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
        return shell.run(lambda: self._execute(client, (args, kwargs)))

    async def arun(self, *args: Any, engine: Engine | None = None, **kwargs: Any) -> State:
        """As `run`, on the loop of the caller."""
        self._bind(args, kwargs)
        return await self._execute(client_of(engine), (args, kwargs))

    def stream(
        self,
        *args: Any,
        engine: Engine | None = None,
        var: str | None = None,
        branches: bool = False,
        **kwargs: Any,
    ) -> Stream:
        """Run and hand out the text as it comes: `for delta in p.stream(...)`, or `async for`.

        All of the program's main line, or only what is bound to `var` (a span comes in one piece
        when it ends); with `branches` also what forks and copies say, told apart by `delta.branch`.
        `.state` is the state afterwards. Errors, and leaving the loop early: see `Stream`.
        """
        for name in ("var", "branches"):
            if name in self._signature.parameters:
                raise InvalidRequest(
                    f"the parameter name {name!r} of the program is taken by stream"
                )
        self._bind(args, kwargs)
        client = client_of(engine)
        return Stream(lambda feed: self._execute(client, (args, kwargs), feed), var, branches)

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

        At most `max_concurrency` programs are alive at once. `progress` shows on stderr how many
        are done. With errors="raise" the first error cancels the rest and is raised; with "return"
        an exception stands in the failed one's place. All inputs are checked before the first run.
        """
        width = batch.checked_options(errors, max_concurrency)
        calls = list(self._arguments(inputs))
        if not calls:
            return []
        source = self._source(engine, calls, width)
        return shell.run(lambda: batch.gather(source(errors == "raise"), len(calls), progress))

    @overload
    async def arun_batch(
        self,
        inputs: Sequence[Inputs],
        *,
        engine: Engine | None = None,
        progress: bool = False,
        max_concurrency: int | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[State]: ...

    @overload
    async def arun_batch(
        self,
        inputs: Sequence[Inputs],
        *,
        engine: Engine | None = None,
        progress: bool = False,
        max_concurrency: int | None = None,
        errors: Literal["return"],
    ) -> list[State | Exception]: ...

    async def arun_batch(
        self,
        inputs: Sequence[Inputs],
        *,
        engine: Engine | None = None,
        progress: bool = False,
        max_concurrency: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[State] | list[State | Exception]:
        """As `run_batch`, on the loop of the caller."""
        width = batch.checked_options(errors, max_concurrency)
        calls = list(self._arguments(inputs))
        if not calls:
            return []
        source = self._source(engine, calls, width)
        return await batch.gather(source(errors == "raise"), len(calls), progress)

    @overload
    def iter_batch(
        self,
        inputs: Iterable[Inputs],
        *,
        engine: Engine | None = None,
        max_concurrency: int | None = None,
        errors: Literal["raise"] = "raise",
    ) -> Iteration[tuple[int, State]]: ...

    @overload
    def iter_batch(
        self,
        inputs: Iterable[Inputs],
        *,
        engine: Engine | None = None,
        max_concurrency: int | None = None,
        errors: Literal["return"],
    ) -> Iteration[tuple[int, State | Exception]]: ...

    def iter_batch(
        self,
        inputs: Iterable[Inputs],
        *,
        engine: Engine | None = None,
        max_concurrency: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> Iteration[Any]:
        """(number of the input, state) as they finish: `for i, state in p.iter_batch(...)`.

        Also with `async for`. Inputs are taken, and checked, as places get free, so they may come
        from a generator without an end. Leaving the loop early cancels what runs. Options as for
        `run_batch`; with errors="return" an exception comes in the place of a state.
        """
        width = batch.checked_options(errors, max_concurrency)
        source = self._source(engine, self._arguments(inputs), width)
        return Iteration(lambda: source(errors == "raise"))

    def _arguments(self, inputs: Iterable[Inputs]) -> Iterable[Arguments]:
        """The inputs of a batch, checked one by one."""
        if not isinstance(inputs, Iterable) or isinstance(inputs, str | Mapping):
            raise InvalidRequest(f"inputs must be a list of dicts or tuples, found {inputs!r}")
        for each in inputs:
            args, kwargs = batch.arguments_of(each)
            self._bind(args, kwargs)
            yield args, kwargs

    def _source(
        self, engine: Engine | None, calls: Iterable[Arguments], width: int
    ) -> Callable[[bool], AsyncGenerator[Outcome, None]]:
        client = client_of(engine)

        def make(strict: bool) -> AsyncGenerator[Outcome, None]:
            found = batch.outcomes(lambda call: self._execute(client, call), calls, width)
            return batch.strict(found) if strict else found

        return make

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            name = getattr(self._body, "__name__", "program")
            raise InvalidRequest(f"{name}{self._signature}: {error}") from None

    async def _execute(self, client: Client, call: Arguments, feed: Feed | None = None) -> State:
        args, kwargs = call
        run = Run(client, Calls(self.settings, self._warned), feed)
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


@overload
def program(body: Body, /) -> Program: ...


@overload
def program(
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    seed: int | None = None,
    namespace: str = "",
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Callable[[Body], Program]: ...


def program(  # noqa: PLR0913 - the public face names every option; inside it is one frozen value
    body: Body | None = None,
    /,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    seed: int | None = None,
    namespace: str = "",
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Program | Callable[[Body], Program]:
    """Make a program of a function: `@program`, or `@program(temperature=0.7)` with defaults.

    The defaults hold for every `gen` that does not say otherwise; see `Settings`.
    """
    settings = Settings(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        seed=seed,
        namespace=namespace,
        timeout=timeout,
    )
    if body is not None:
        return Program(body, settings)
    return lambda function: Program(function, settings)
