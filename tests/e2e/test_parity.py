"""Greedy tokens equal those of transformers on the same dequantised weights, in every regime.

A difference is forgiven only where the reference's own two best logits lie closer than 1e-4, which
is what float32 sums in another order can turn around.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from real_model import RealModel, Served
from transformers import AutoModelForCausalLM, PreTrainedModel

from branchwork.backend.config import SchedulerConfig
from branchwork.backend.text.tokenizer import Run
from branchwork.lang.client import complete
from branchwork.lang.request import Finish, Request, Tokens
from branchwork.lang.sampling import Sampling

NEAR_TIE = 1e-4
N_TOKENS = 64

PROSE = [
    "The history of the printing press begins",
    "In the middle of the night, the lighthouse keeper",
    "def fibonacci(n):\n",
    "The three most important rules of gardening are",
    "Once upon a time there was a clockmaker who",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,\n\nI am writing to",
    "A recipe for vegetable soup: first,",
    "1, 1, 2, 3, 5, 8, 13,",
    "The capital of France is Paris. The capital of Italy is",
]
QUESTIONS = [
    "Why is the sky blue?",
    "Write a haiku about rivers.",
    "What is the difference between a list and a tuple in Python?",
    "Give me three names for a black cat.",
    "How do I boil an egg?",
    "Explain gravity to a child.",
    "Translate 'good morning' into Spanish.",
    "What should I pack for a trip to the mountains?",
    "List the planets of the solar system.",
    "Tell me a short story about a fox.",
]


@pytest.fixture(scope="module")
def oracle(real_model: RealModel) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(
        str(real_model.path.parent), gguf_file=real_model.path.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def prompts(real_model: RealModel) -> list[tuple[int, ...]]:
    tokenizer = real_model.tokenizer
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    texts = [*PROSE, *(chat.format(q) for q in QUESTIONS)]
    return [tuple(tokenizer.encode([Run(text, trusted=True)])) for text in texts]


@pytest.fixture(scope="module")
def reference(
    oracle: PreTrainedModel, prompts: list[tuple[int, ...]], real_model: RealModel
) -> list[list[int]]:
    """What `generate` says. In one batch, padded on the left: one by one it takes minutes."""
    ends = list(real_model.tokenizer.end_ids)
    width = max(map(len, prompts))
    given = torch.tensor([[ends[0]] * (width - len(ids)) + list(ids) for ids in prompts])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    with torch.inference_mode():
        made = oracle.generate(
            given,
            attention_mask=mask,
            max_new_tokens=N_TOKENS,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=ends[0],
        )
    return [_to_the_end(row[width:].tolist(), ends) for row in made]


def _to_the_end(ids: list[int], ends: list[int]) -> list[int]:
    """Without the padding that follows a first end token."""
    stop = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    return ids[: stop + 1]


async def generate(served: Served, prompts: Sequence[tuple[int, ...]]) -> list[Finish]:
    """All prompts at once."""
    requests = [
        Request(segments=(Tokens(ids),), sampling=Sampling(max_tokens=N_TOKENS)) for ids in prompts
    ]
    return await asyncio.gather(*(complete(served.client, request) for request in requests))


def is_near_tie(oracle: PreTrainedModel, ids: Sequence[int]) -> bool:
    """Whether the two best next tokens after `ids` are closer than float32 can promise."""
    with torch.inference_mode():
        logits = oracle(torch.tensor([ids])).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    return best - second < NEAR_TIE


def differences(
    oracle: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    right: Sequence[list[int]],
    found: Sequence[Finish],
) -> list[str]:
    out = []
    for prompt, wanted, finish in zip(prompts, right, found, strict=True):
        got = list(finish.token_ids)
        same = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), None)
        if same is None and len(wanted) == len(got):
            continue
        at = min(len(wanted), len(got)) if same is None else same
        if not is_near_tie(oracle, [*prompt, *wanted[:at]]):
            out.append(f"prompt of {len(prompt)} tokens differs at {at}: {wanted[at:]} {got[at:]}")
    return out


def test_alone_then_in_one_batch_then_warm(
    real_model: RealModel,
    oracle: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    reference: list[list[int]],
) -> None:
    n_alone = 3

    async def run(served: Served) -> list[Finish]:
        alone = [(await generate(served, [ids]))[0] for ids in prompts[:n_alone]]
        return [*alone, *await generate(served, prompts[n_alone:])]

    with real_model.serve(400, SchedulerConfig()) as served:
        cold = asyncio.run(run(served))
        warm = asyncio.run(generate(served, prompts))
    assert differences(oracle, prompts, reference, cold) == []
    assert differences(oracle, prompts, reference, warm) == []
    assert all(f.usage.cached_tokens == len(p) - 1 for f, p in zip(warm, prompts, strict=True))


@pytest.mark.parametrize(
    ("n_tokens", "config"),
    [
        pytest.param(4000, SchedulerConfig(page_size=1), id="page size 1"),
        pytest.param(4000, SchedulerConfig(page_size=4), id="page size 4"),
        pytest.param(4000, SchedulerConfig(chunk_tokens=7), id="prefill in chunks of 7"),
        pytest.param(560, SchedulerConfig(page_size=4, reserve_tokens=0), id="retraction"),
    ],
)
def test_in_one_batch(
    n_tokens: int,
    config: SchedulerConfig,
    real_model: RealModel,
    oracle: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    reference: list[list[int]],
    request: pytest.FixtureRequest,
) -> None:
    with real_model.serve(n_tokens // config.page_size, config) as served:
        found = asyncio.run(generate(served, prompts))
        retractions = served.scheduler.stats().retractions
    assert differences(oracle, prompts, reference, found) == []
    assert (retractions > 0) == ("retraction" in request.node.name)
