"""The exception tree. Everything a user can be told stands here; who raises it does not matter.

    BranchworkError
    ├── RequestError              the request cannot be served as asked (HTTP 4xx)
    │   ├── InvalidRequest        a value out of range, options that conflict, an unknown name
    │   │   └── DuplicateRequest  a live request already carries this id
    │   ├── PromptTooLong         more tokens than the context or the KV pool can ever hold
    │   ├── Unsupported           a feature this build does not have, by name
    │   ├── TemplateError         the model's chat template refuses these roles
    │   └── Overloaded            the waiting queue is full; try again later (retryable)
    ├── ModelError                a model cannot be found, fetched or loaded
    │   ├── UnknownModel          the name resolves to nothing
    │   ├── UnsupportedModel      a known file of an architecture we do not run
    │   └── DownloadError         offline, broken off, or the wrong bytes
    ├── EngineError               our side failed
    │   ├── EngineClosed          used after close, or closed while the call was waiting
    │   └── StepFailed            the model step that carried this request raised
    ├── Cancelled                 the caller or the program cancelled this call
    ├── CallTimeout               a call or an internal wait passed its limit
    └── ProgramError              a program's own mistake or a failed call of it: names the line

A message says what was expected, what was found and what to do. `code` is stable and crosses
process borders; `to_wire`/`from_wire` rebuild the same class on the other side.
"""

from __future__ import annotations

from typing import ClassVar


class BranchworkError(Exception):
    """Root of all errors raised on purpose by Branchwork."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class RequestError(BranchworkError):
    """The request cannot be served as asked; repeating it unchanged will fail again."""

    code = "bad_request"
    status = 400


class InvalidRequest(RequestError):
    """A value out of range, options that conflict, or an unknown name."""

    code = "invalid_request"


class DuplicateRequest(InvalidRequest):
    """A live request already carries this id."""

    code = "duplicate_request"
    status = 409


class PromptTooLong(RequestError):
    """More tokens than the model's context or the KV pool can ever hold."""

    code = "prompt_too_long"


class Unsupported(RequestError):
    """A feature this build does not have."""

    code = "unsupported"


class TemplateError(RequestError):
    """The model's chat template refuses these roles or this order."""

    code = "template"


class Overloaded(RequestError):
    """The waiting queue is full."""

    code = "overloaded"
    status = 429
    retryable = True


class ModelError(BranchworkError):
    """A model cannot be found, fetched or loaded."""

    code = "model"
    status = 404


class UnknownModel(ModelError):
    """The name is no path, alias, cached model or hub repository."""

    code = "unknown_model"


class UnsupportedModel(ModelError):
    """The file was read but its architecture or tokenizer is not one we run."""

    code = "unsupported_model"


class DownloadError(ModelError):
    """Offline, broken off, or the wrong bytes arrived."""

    code = "download"
    retryable = True


class EngineError(BranchworkError):
    """Our side failed."""

    code = "engine"


class EngineClosed(EngineError):
    """The engine was used after close, or closed while the call was waiting."""

    code = "engine_closed"
    status = 503


class StepFailed(EngineError):
    """The model step that carried this request raised; its pages are freed, others go on."""

    code = "step_failed"


class Cancelled(BranchworkError):
    """The caller or the program cancelled this call."""

    code = "cancelled"
    status = 499


class CallTimeout(BranchworkError):
    """A call or an internal wait passed its limit."""

    code = "timeout"
    status = 504


class ProgramError(BranchworkError):
    """A mistake in a program, or a call of it that failed.

    `where` is "file.py:12", `call` the name of the call ("reply") or of the statement. When a call
    failed, the error it failed with is `__cause__`.
    """

    code = "program"

    def __init__(self, message: str, where: str = "", call: str = "") -> None:
        """`message` says what went wrong; place and call are put in front of it."""
        named = f"{call}: {message}" if call else message
        super().__init__(f"[{where}] {named}" if where else named)
        self.where = where
        self.call = call


def _walk(cls: type[BranchworkError]) -> dict[str, type[BranchworkError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_walk(child))
    return found


def from_wire(code: str, message: str) -> BranchworkError:
    """Rebuild an error from its `code` and message; an unknown code gives the root class."""
    cls = _walk(BranchworkError).get(code, BranchworkError)
    return cls(message)


def to_wire(error: BaseException) -> tuple[str, str]:
    """`(code, message)` of an error; a foreign exception becomes an engine error."""
    if isinstance(error, BranchworkError):
        return error.code, str(error)
    return EngineError.code, f"{type(error).__name__}: {error}"
