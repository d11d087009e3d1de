"""A chat over several turns: the script asks, the model answers, and each turn sees all before it.

Shows a conversation as one growing text. What was said is kept token for token, so a turn computes
the new question and its answer only: in the table, `computed` stays small while `prompt` grows. The
answers are printed as they are written (`stream`). A stop string ends each after one sentence; it
is not part of the value, so the program writes the full stop itself.

    python examples/chat.py
    branchwork run examples/chat.py
"""

from __future__ import annotations

from collections.abc import Sequence

import branchwork as bw

TURNS = [
    "I would like to read more books. Where should I begin?",
    "I like stories about the sea. Which one should I read?",
    "And one about pirates?",
    "Thank you. When can I come and borrow it?",
]


@bw.program
def chat(s: bw.State, turns: Sequence[str] = TURNS) -> None:
    """One answer a turn."""
    s += bw.system("You are a friendly librarian. Answer in one short sentence.")
    for number, question in enumerate(turns, start=1):
        s += bw.user(question)
        with s.assistant():
            s += bw.gen(f"answer {number}", max_tokens=40, stop=[".", "!"]) + "."


def main(engine: bw.Engine) -> bw.State:
    """Hold the conversation, printing the answers while they are written."""
    stream = chat.stream(engine=engine)
    for delta in stream:
        print(delta.text, end="", flush=True)
    print("\n")
    print(stream.state.explain())
    return stream.state


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
