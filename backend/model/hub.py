"""A model repository of the Hugging Face hub, brought into the hub library's own cache.

`huggingface_hub` does the network, the login and the cache layout, so a model fetched by any other
tool is found here too. Must never read a model. Called by `fetch.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub  # 7 ms: the library loads its parts (0.5 s) when they are first used

from ...lang.errors import DownloadError, UnknownModel

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt")
"""What a model needs: config, tokenizer, chat template, weights; no other weight format."""


@dataclass(frozen=True, slots=True)
class Hub:
    """Where repositories are kept (None: the library's own cache) and whether to go online.

    The library reads HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT and the user's token itself.
    """

    cache: Path | None = None
    offline: bool = False

    def fetch(self, name: str, refresh: bool = False) -> Path:
        """The folder of the repository `name` ("owner/name") at its newest commit.

        One that is here in full is taken as it stands, without a look at the network, unless
        `refresh` asks for the newest. The library shows its own progress bars. Raises
        `UnknownModel` where the hub has no such repository, `DownloadError` where it cannot be
        fetched.
        """
        folder = None if refresh and not self.offline else self._here(name)
        if folder is not None:
            return folder
        if self.offline:
            raise DownloadError(_advice(name, "it is not in the local cache and we are offline"))
        folder = self._download(name)
        missing = _missing(folder)
        if missing:
            raise UnknownModel(
                f"the repository {name} of the Hugging Face hub holds no {missing}: expected a "
                "transformers model in safetensors. For a GGUF repository fetch the one file "
                f"with `hf download {name} FILE.gguf --local-dir .` and give its path"
            )
        return folder

    def _here(self, name: str) -> Path | None:
        try:
            found = huggingface_hub.snapshot_download(
                name, cache_dir=self.cache, local_files_only=True, allow_patterns=list(PATTERNS)
            )
        except (OSError, ValueError):
            return None
        folder = Path(str(found))
        return None if _missing(folder) else folder

    def _download(self, name: str) -> Path:
        try:
            found = huggingface_hub.snapshot_download(
                name, cache_dir=self.cache, allow_patterns=list(PATTERNS)
            )
        except huggingface_hub.errors.GatedRepoError as error:
            raise DownloadError(
                f"the model {name} is behind terms of use: accept them at its page on the Hugging "
                "Face hub, log in with `hf auth login`, then try again"
            ) from error
        except (
            huggingface_hub.errors.RepositoryNotFoundError,
            huggingface_hub.errors.HFValidationError,
        ) as error:
            raise UnknownModel(
                f"unknown model {name!r}: it is no path, alias or cached model, and the Hugging "
                "Face hub has no such repository (a private one needs `hf auth login`)"
            ) from error
        except OSError as error:  # all network errors of the library are OSErrors
            raise DownloadError(_advice(name, _first_line(error))) from error
        return Path(str(found))


def _missing(folder: Path) -> str:
    """The first file a model folder lacks, "" where it is complete."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if (folder / "model.safetensors").is_file():
        return ""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return "model.safetensors"
    try:
        names = {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return "readable model.safetensors.index.json"
    return next((name for name in sorted(names) if not (folder / name).is_file()), "")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _advice(name: str, why: str) -> str:
    return (
        f"could not fetch the model {name} from the Hugging Face hub: {why}\n"
        f"  Without a network: run `hf download {name} --local-dir DIR` on a machine that has one\n"
        "  and give a copy of DIR as the model"
    )
