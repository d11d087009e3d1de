"""What a program may say about all its calls at once. Frozen; made by `program`, read by `run`."""

from __future__ import annotations

import msgspec

from .errors import InvalidRequest
from .options import SHARED, checked_numbers, checked_seconds

DEFAULT_TIMEOUT_S = 3600.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults for the `gen` calls of a run; None leaves the library's own default.

    `seed` makes a run repeatable; each call draws by its own seed derived from it. `namespace`
    separates caches. `timeout` is the longest a single call may take, in seconds, waiting in the
    engine's queue included.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    namespace: str = ""
    timeout: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what no call could honour."""
        numbers = {name: getattr(self, name) for name in (*SHARED, "seed")}
        checked_numbers(numbers, "program settings")
        checked_seconds(self.timeout, "program settings")
        if not isinstance(self.namespace, str):
            raise InvalidRequest(
                f"program settings: namespace must be a string, found {self.namespace!r}"
            )
