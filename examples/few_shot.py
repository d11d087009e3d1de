"""Few-shot classification over a batch: a dozen messages to a town library are sorted by kind.

Shows `run_batch` over one program. The worked examples are the same for every message, so the model
reads them once, and each further message costs its own few words. `select` answers with one of the
given kinds and never with anything else, and its scores say how sure the model was.

    python examples/few_shot.py
    branchwork run examples/few_shot.py --arg message="Is the library open on Sunday?"
"""

from __future__ import annotations

import branchwork as bw

KINDS = [" praise", " complaint", " question"]

EXAMPLES = [
    ("The new chairs are wonderful.", " praise"),
    ("The toilets were dirty again.", " complaint"),
    ("When do you close on Saturday?", " question"),
    ("Nobody answered the telephone all day.", " complaint"),
    ("Do you have a map of the valley?", " question"),
    ("The guide knew everything and was so kind.", " praise"),
]

MESSAGES = [
    ("Is the library open on Sunday?", " question"),
    ("Where can I leave my bicycle?", " question"),
    ("How do I become a member?", " question"),
    ("May children come alone?", " question"),
    ("Thank you for the lovely story hour.", " praise"),
    ("Your staff are always friendly.", " praise"),
    ("The exhibition was beautiful.", " praise"),
    ("My daughter loved the wooden whale.", " praise"),
    ("The reading room was too cold.", " complaint"),
    ("I waited an hour and no guide came.", " complaint"),
    ("The book I got was torn.", " complaint"),
    ("Someone was shouting and nobody stopped him.", " complaint"),
]


@bw.program
def classify(s: bw.State, message: str = MESSAGES[0][0]) -> None:
    """Name the kind of one message."""
    for text, kind in EXAMPLES:
        s += f"Message: {text}\nType:{kind}\n\n"
    s += f"Message: {message}\nType:" + bw.select("kind", KINDS)


def main(engine: bw.Engine) -> list[bw.State]:
    """Sort all messages at once; print the answers, how sure the model was, and what it cost."""
    states = classify.run_batch([{"message": text} for text, _ in MESSAGES], engine=engine)
    right = 0
    for (text, expected), state in zip(MESSAGES, states, strict=True):
        kind = state["kind"]
        right += kind == expected
        sure = state.scores("kind")[kind].probability
        print(f"{kind.strip():9} {sure:4.0%}  {text}{'' if kind == expected else '  (wrong)'}")
    print(f"{right} of {len(MESSAGES)} right\n")

    print("The first message and the last:")
    print(states[0].explain())
    print(states[-1].explain())
    bills = [state.explain().savings for state in states]
    cached, prompt = sum(b.cached_tokens for b in bills), sum(b.prompt_tokens for b in bills)
    print(f"all {len(bills)}: sharing saved {cached:,} of {prompt:,} prompt tokens")
    return states


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
