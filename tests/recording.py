"""A client that remembers what every call sent, got and cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from branchwork.lang.client import Client
from branchwork.lang.request import Delta, Finish, Request


class Recording:
    """Passes everything on; `finishes` in the order in which the calls ended."""

    def __init__(self, inner: Client) -> None:
        self.inner = inner
        self.finishes: list[Finish] = []

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        async for delta in self.inner.stream(request):
            if delta.finish is not None:
                self.finishes.append(delta.finish)
            yield delta

    async def aclose(self) -> None:
        await self.inner.aclose()

    @property
    def computed(self) -> int:
        """Tokens that went through the model, prompts, choices and drawn ones."""
        return sum(finish.usage.computed_tokens for finish in self.finishes)

    @property
    def computed_prompt(self) -> int:
        """Prompt tokens that were not served from the cache."""
        usages = [finish.usage for finish in self.finishes]
        return sum(usage.prompt_tokens - usage.cached_tokens for usage in usages)


def distinct_prefixes(sequences: Iterable[tuple[int, ...]]) -> int:
    """Nodes of the trie of all sequences: what must be computed at least once."""
    return len({ids[:end] for ids in sequences for end in range(1, len(ids) + 1)})
