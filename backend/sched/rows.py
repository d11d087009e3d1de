"""From a running sequence to its row of a plan, and from a won trie to the moves that keep its KV.

Pure functions; the scheduler calls them and keeps all state.
"""

from __future__ import annotations

from collections import Counter

from ..port import Trie
from .plan import Copy, Draw, Past, Row
from .sequence import Sequence


def row_for(seq: Sequence, n: int) -> Row:
    """The row that computes the next `n` of `seq`'s tokens; with the last also its trie."""
    if seq.job.trie is not None and n == seq.remaining:
        return _trie_row(seq, seq.job.trie)
    assert seq.lease is not None
    start, job = seq.computed, seq.job
    draw = None
    if start + n == len(seq.ids) and job.max_tokens > 0:
        draw = _draw(seq)
    return Row(
        tokens=seq.ids[start : start + n],
        start=start,
        pages=seq.lease.pages,
        scores=_prompt_scores(seq, start, n),
        draw=draw,
    )


def _draw(seq: Sequence) -> Draw:
    """How its next token is drawn: a function of the job and the ids so far, so retraction and
    chunks change nothing.
    """
    job = seq.job
    return Draw(
        rules=job.rules,
        seed=job.seed,
        position=len(seq.ids),
        logprob=job.logprobs,
        top=job.top_logprobs,
        past=_past(seq),
        banned=job.end_ids if seq.drawn < job.min_tokens else (),
    )


def _past(seq: Sequence) -> Past:
    """Counted anew for each token: 0.25 ms at 4,000 ids, and only under a penalty."""
    rules = seq.job.rules
    seen = tuple(dict.fromkeys(seq.ids)) if rules.repetition_penalty != 1 else ()
    drawn = Counter(seq.ids[seq.n_prompt :]) if rules.counts_drawn else {}
    return Past(seen, tuple(drawn.items()))


def _trie_row(seq: Sequence, trie: Trie) -> Row:
    """The rest of the prompt, then the inner nodes; scores for the prompt, then for every node."""
    assert seq.lease is not None
    n = seq.remaining
    row_of = {node: n + i for i, node in enumerate(seq.inner)}
    row_of[-1] = n - 1
    parents = (*range(-1, n - 1), *(row_of[trie.parents[node]] for node in seq.inner))
    nodes = zip(trie.parents, trie.tokens, strict=True)
    node_scores = tuple((row_of[parent], token) for parent, token in nodes)
    return Row(
        tokens=[*seq.ids[seq.computed :], *(trie.tokens[node] for node in seq.inner)],
        start=seq.computed,
        pages=seq.lease.pages,
        parents=parents if seq.inner else None,
        scores=_prompt_scores(seq, seq.computed, n) + node_scores,
    )


def _prompt_scores(seq: Sequence, start: int, n: int) -> tuple[tuple[int, int], ...]:
    """Which of these positions predict a prompt token whose log-probability is wanted."""
    wanted = seq.next_logprob
    if wanted is None:
        return ()
    targets = range(max(wanted, start + 1), min(start + n + 1, seq.n_prompt))
    return tuple((position - 1 - start, seq.ids[position]) for position in targets)


def kept_nodes(trie: Trie, winner: int, inner: tuple[int, ...]) -> list[int]:
    """The winner's kept nodes that have KV. They are the top of its path: only its end may lack."""
    with_kv = set(inner)
    return [node for node in trie.paths[winner][: trie.kept[winner]] if node in with_kv]


def path_moves(
    before: list[int], after: list[int], slots: list[tuple[int, int]], page_size: int
) -> list[Copy]:
    """Copies that bring a winner's KV from its trie slots to consecutive ones.

    `slots`: pairs (from, to). `before` are the pages the row was computed in, `after` those the
    commit left: where it exchanged our page for one the tree had, the rows are there already.
    """
    moves = []
    for source, target in slots:
        page = before[target // page_size]
        if source != target and after[target // page_size] == page:
            moves.append(
                Copy(before[source // page_size], source % page_size, page, target % page_size, 1)
            )
    return moves
