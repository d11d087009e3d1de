"""`branchwork pull MODEL`: fetch a model now instead of at its first use."""

from __future__ import annotations

from ...backend.model.bar import download_bar
from ...backend.model.fetch import default_fetcher
from ..show import print_json, say


def pull(model: str, as_json: bool) -> None:
    """Fetch, or check every byte of what is there, and print where it lies."""
    with download_bar(model) as progress:
        path = default_fetcher(progress).pull(model)
    if as_json:
        print_json({"model": model, "path": str(path)})
    else:
        say(f"{model} is at {path}")
