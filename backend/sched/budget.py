"""Token and page arithmetic of the scheduler. Pure functions over numbers, no state."""

from __future__ import annotations

from collections.abc import Iterable

from ...lang.errors import InvalidRequest, PromptTooLong
from ..config import SchedulerConfig
from .sequence import Sequence


def pages_for(n_tokens: int, page_size: int) -> int:
    """Pages that hold `n_tokens` positions."""
    return -(-n_tokens // page_size)


def growth_reserve(running: Iterable[Sequence], config: SchedulerConfig) -> int:
    """Pages the running sequences may want soon."""
    tokens = (min(seq.job.max_tokens - seq.drawn, config.reserve_tokens) for seq in running)
    return sum(pages_for(max(n, 0), config.page_size) for n in tokens)


def refuse_impossible(seq: Sequence, config: SchedulerConfig, total_pages: int) -> None:
    """Raise at once for a sequence that could not run even alone in an empty pool."""
    if not seq.ids:
        raise InvalidRequest("the prompt must hold at least one token, found none")
    trie = seq.job.trie
    if trie is not None and len(trie.tokens) > config.max_trie_tokens:
        raise InvalidRequest(
            f"the choices need {len(trie.tokens)} distinct tokens, at most "
            f"{config.max_trie_tokens} fit one pass; offer fewer or shorter choices"
        )
    needed = pages_for(seq.most_slots, config.page_size)
    if needed > total_pages:
        raise PromptTooLong(
            f"{seq.n_prompt} prompt tokens and up to {seq.job.max_tokens} drawn ones need "
            f"{needed} KV pages of {config.page_size} tokens, the pool has {total_pages}; shorten "
            "the prompt, lower max_tokens or give the engine more kv_tokens"
        )


def chunk(seq: Sequence, config: SchedulerConfig, budget: int) -> int:
    """How many of `seq`'s uncomputed tokens this step takes; `budget` is what the step has left."""
    return min(seq.remaining, config.chunk_tokens or config.step_tokens, budget)
