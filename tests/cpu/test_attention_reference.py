"""The paged reference against a dense computation in float64, row by row, position by position."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import AttentionCase, AttentionRow, attention_cases

from branchwork.backend.attention.interface import PLAIN, RowShape, ScoreRule
from branchwork.backend.attention.reference import ReferenceAttention

N_HEADS, N_KV, DIM = 4, 2, 8
CPU = torch.device("cpu")


def shapes(case: AttentionCase) -> list[RowShape]:
    return [RowShape(r.n_tokens, r.start, r.pages, r.parents) for r in case.rows]


def visible(row: AttentionRow, i: int, window: int | None) -> list[int]:
    """Offsets of the slots token i attends to, spelled out from the contract."""
    if row.parents is None:
        line = [row.start + j for j in range(i + 1)]
    else:
        line = []
        while i >= 0:
            line.insert(0, row.start + i)
            i = row.parents[i]
    # A line of ancestors stands at positions start, start + 1, ...
    seen = list(range(row.start)) + line
    return seen if window is None else seen[-window:]


def dense(
    case: AttentionCase,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rule: ScoreRule = PLAIN,
) -> torch.Tensor:
    out, at = [], 0
    for row in case.rows:
        for i in range(row.n_tokens):
            slots = [
                row.pages[p // case.page_size] * case.page_size + p % case.page_size
                for p in visible(row, i, rule.window)
            ]
            k, v = k_cache[slots].double(), v_cache[slots].double()
            k, v = (x.repeat_interleave(N_HEADS // N_KV, dim=1) for x in (k, v))
            scores = torch.einsum("hd,lhd->hl", q[at].double(), k)
            scores *= rule.scale or 1 / math.sqrt(DIM)
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            out.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v))
            at += 1
    return torch.stack(out)


def random_step(
    case: AttentionCase, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(case.seed)
    n = sum(row.n_tokens for row in case.rows)
    sizes = [(n, N_HEADS), (n, N_KV), (n, N_KV)] + [(case.n_pages * case.page_size, N_KV)] * 2
    made = [torch.randn(*size, DIM, generator=generator).to(dtype) for size in sizes]
    return made[0], made[1], made[2], made[3], made[4]


@settings(max_examples=80, deadline=None)
@given(attention_cases())
def test_paged_attention_equals_dense_attention(case: AttentionCase) -> None:
    q, k, v, k_cache, v_cache = random_step(case)
    step = ReferenceAttention(case.page_size, torch.float32, CPU).plan(shapes(case))
    out = step.run(q, k, v, k_cache, v_cache)
    torch.testing.assert_close(out.double(), dense(case, q, k_cache, v_cache), rtol=1e-5, atol=1e-5)


RULES = st.builds(
    ScoreRule,
    window=st.none() | st.integers(1, 12) | st.integers(1, 50),
    scale=st.none() | st.floats(0.1, 2.0),
    softcap=st.none() | st.floats(0.5, 5.0),
)


@settings(max_examples=120, deadline=None)
@given(attention_cases(), st.lists(RULES, min_size=1, max_size=3))
def test_every_layer_of_a_step_scores_by_its_own_rule(
    case: AttentionCase, rules: list[ScoreRule]
) -> None:
    q, k, v, k_cache, v_cache = random_step(case)
    step = ReferenceAttention(case.page_size, torch.float32, CPU).plan(shapes(case), rules)
    for rule in rules:
        out = step.run(q, k, v, k_cache, v_cache, rule)
        expected = dense(case, q, k_cache, v_cache, rule)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_layers_of_one_window_share_what_was_planned() -> None:
    rows = [RowShape(5, 20, range(2)), RowShape(1, 30, range(2, 4))]
    rules = [ScoreRule(8), ScoreRule(8, scale=0.5), ScoreRule(), ScoreRule(1000)]
    step = ReferenceAttention(16, torch.float32, CPU).plan(rows, rules)
    assert len({id(parts) for parts in step._parts.values()}) == 2  # 8, and all the rest


@settings(max_examples=30, deadline=None)
@given(attention_cases())
def test_new_keys_and_values_reach_their_slots_and_no_others(case: AttentionCase) -> None:
    q, k, v, k_cache, v_cache = random_step(case)
    before = k_cache.clone()
    step = ReferenceAttention(case.page_size, torch.float32, CPU).plan(shapes(case))
    step.run(q, k, v, k_cache, v_cache)
    at = 0
    for row in case.rows:
        for p in range(row.start, row.start + row.n_tokens):
            slot = row.pages[p // case.page_size] * case.page_size + p % case.page_size
            before[slot] = k[at]
            assert torch.equal(v_cache[slot], v[at])
            at += 1
    assert torch.equal(k_cache, before)


def test_a_nan_in_one_row_stays_in_that_row() -> None:
    rows = tuple(AttentionRow(1, start, (i,), None) for i, start in enumerate((8, 14, 11)))
    case = AttentionCase(16, 3, rows, seed=1)
    q, k, v, k_cache, v_cache = random_step(case)
    k_cache[:16] = v_cache[:16] = math.nan  # all of row 0's page, also behind its end
    step = ReferenceAttention(16, torch.float32, CPU).plan(shapes(case))
    out = step.run(q, k, v, k_cache, v_cache)
    assert out[0].isnan().all()
    assert out[1:].isfinite().all()


def test_unwritten_slots_are_never_read() -> None:
    rows = (AttentionRow(1, 4, (0,), None), AttentionRow(1, 6, (1,), None))
    rows += (AttentionRow(3, 2, (2,), None), AttentionRow(2, 3, (3,), (-1, -1)))
    case = AttentionCase(16, 4, rows, seed=2)
    q, k, v, k_cache, v_cache = random_step(case)
    for page, row in enumerate(rows):
        end = page * 16 + row.start + row.n_tokens
        k_cache[end : page * 16 + 16] = v_cache[end : page * 16 + 16] = math.nan
    step = ReferenceAttention(16, torch.float32, CPU).plan(shapes(case))
    assert step.run(q, k, v, k_cache, v_cache).isfinite().all()


def test_bfloat16_stays_close_to_the_dense_result() -> None:
    rows = (
        AttentionRow(1, 20, (5, 0), None),
        AttentionRow(6, 10, (3,), None),
        AttentionRow(4, 9, (1,), (-1, 0, 0, 1)),
    )
    case = AttentionCase(16, 6, rows, seed=3)
    q, k, v, k_cache, v_cache = random_step(case, torch.bfloat16)
    step = ReferenceAttention(16, torch.bfloat16, CPU).plan(shapes(case))
    out = step.run(q, k, v, k_cache, v_cache)
    assert out.dtype == torch.bfloat16
    expected = dense(case, q, k_cache, v_cache)
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)


def test_a_row_without_room_in_its_pages_is_refused() -> None:
    plan = ReferenceAttention(4, torch.float32, CPU).plan
    with pytest.raises(AssertionError, match="room"):
        plan([RowShape(3, 2, (0,))])
