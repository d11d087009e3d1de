"""The command line: argv in, one command out, errors as one line.

The one reader of argv. Every command is a module of `commands/`, loaded when it runs, so that
`branchwork --help` needs neither torch nor an engine. Exit codes: 0 done, 1 it failed, 2 asked for
wrongly, 130 interrupted. Called by the console script and `python -m branchwork`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Annotated

import typer

from ..backend.config import EngineConfig
from ..lang.errors import BranchworkError, RequestError, UnknownModel
from ..lang.sampling import Sampling

app = typer.Typer(
    help="Programs that call a language model many times, made cheap by one radix tree.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document for a program.")]
ModelName = Annotated[str, typer.Option("--model", help="Alias, GGUF file or model folder.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32 or bfloat16.")]
KvTokens = Annotated[
    int | None,
    typer.Option("--kv-tokens", help="Size of the KV pool; sized from memory if left out."),
]


def main() -> None:
    """Entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"branchwork {metadata.version('branchwork')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Programs that call a language model many times, made cheap by one radix tree."""


@app.command()
def demo(
    ticket: Annotated[str | None, typer.Argument(help="A support ticket of your own.")] = None,
    model: ModelName = "smollm2",
    dtype: Dtype = "auto",
    kv_tokens: KvTokens = None,
    as_json: AsJson = False,
) -> None:
    """Run a branching program on a small real model and show what its calls shared."""

    def work() -> None:
        from .commands.demo import demo as command

        command(ticket, EngineConfig(model, dtype, kv_tokens), as_json)

    _guarded(work, as_json)


@app.command()
def run(
    target: Annotated[str, typer.Argument(metavar="FILE.py[:PROGRAM]")],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="A program argument; JSON or plain text."),
    ] = None,
    model: ModelName = "smollm2",
    dtype: Dtype = "auto",
    kv_tokens: KvTokens = None,
    as_json: AsJson = False,
) -> None:
    """Run a program of a Python file and print its text; what it cost goes to standard error."""

    def work() -> None:
        from .commands.run import run as command

        command(target, arg or [], EngineConfig(model, dtype, kv_tokens), as_json)

    _guarded(work, as_json)


@app.command()
def chat(  # noqa: PLR0913, PLR0917 - a user's words
    system: Annotated[str, typer.Option("--system", help="The system message.")] = "",
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Makes the session repeatable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest reply.")] = 512,
    model: ModelName = "smollm2",
    dtype: Dtype = "auto",
    kv_tokens: KvTokens = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a turn.")] = False,
) -> None:
    """Talk to a model; each line of standard input is a turn, /help lists the commands."""

    def work() -> None:
        from .commands.chat import chat as command

        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=max_tokens)
        command(system, sampling, EngineConfig(model, dtype, kv_tokens), as_json)

    _guarded(work, as_json)


@app.command(context_settings={"allow_interspersed_args": False})
def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which; none: list.")] = None,
    rest: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The bench's own; try --help.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a measurement, or list them; what stands behind NAME is the bench's own."""
    status: list[int] = []

    def work() -> None:
        from .commands.bench import list_benches, module_of

        if name is None:
            list_benches(as_json)
        else:
            status.append(import_module(module_of(name)).main(rest or []))

    _guarded(work, as_json)
    raise typer.Exit(sum(status))


@app.command()
def pull(model: str, as_json: AsJson = False) -> None:
    """Fetch a model into the cache, or check every byte of the one that is there."""

    def work() -> None:
        from .commands.pull import pull as command

        command(model, as_json)

    _guarded(work, as_json)


@app.command()
def env(as_json: AsJson = False) -> None:
    """Print versions, machine, cache folder and models: what a bug report needs."""

    def work() -> None:
        from .commands.env import env as command

        command(as_json)

    _guarded(work, as_json)


def _guarded(work: Callable[[], None], as_json: bool) -> None:
    """Run a command; an error of ours becomes one line (or one JSON document) and an exit code."""
    try:
        work()
    except BranchworkError as error:
        if as_json:
            from .show import print_json

            print_json({"error": {"code": error.code, "message": str(error)}})
        else:
            print(f"branchwork: {error}", file=sys.stderr)
        asked_wrongly = isinstance(error, RequestError | UnknownModel)
        raise typer.Exit(2 if asked_wrongly else 1) from error
    except Exception as error:  # of the user's program: its traceback is theirs to see
        if as_json:
            from .show import print_json

            print_json({"error": {"code": "raised", "message": f"{type(error).__name__}: {error}"}})
        raise
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
