"""Where Branchwork keeps files between runs: one cache root.

The one reader of `BRANCHWORK_CACHE`, so that the CLI and an embedded engine agree. Knows nothing
of what lies below the root. Called by `model/fetch.py`, `build.py` and the CLI.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..lang.errors import InvalidRequest

VARIABLE = "BRANCHWORK_CACHE"


def cache_root() -> Path:
    """The cache root: `BRANCHWORK_CACHE`, or ~/.cache/branchwork. It need not exist yet.

    Raises `InvalidRequest` where the variable names a file, or no home directory is known.
    """
    named = os.environ.get(VARIABLE, "").strip()
    try:
        root = Path(named or "~/.cache/branchwork").expanduser().absolute()
    except RuntimeError as error:
        raise InvalidRequest(f"no home directory is known ({error}); set {VARIABLE}") from error
    if root.exists() and not root.is_dir():
        raise InvalidRequest(f"{VARIABLE} must name a folder, found the file {root}")
    return root
