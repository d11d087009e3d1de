"""A pile of documents is sorted: each gets a title and a subject, all at once.

Shows `run_batch` as one uses it in earnest: a bound on how many programs run at a time, and
failures that come back in place of a state, so that one bad document does not stop the others. The
instructions are read once for all; a document is read for its title, and found in the cache for its
subject.

    python examples/triage_batch.py
    branchwork run examples/triage_batch.py --arg text="The museum is closed in May."
"""

from __future__ import annotations

from documents import load

import branchwork as bw

SUBJECTS = [
    " books",
    " history",
    " travel",
    " children",
    " buildings",
    " repairs",
    " maps",
    " plants",
]


@bw.program
def triage(s: bw.State, text: str = "The museum is closed in May.") -> None:
    """A title and a subject for one document."""
    s += bw.system("You put the documents of a small town in order.")
    s += bw.user(f"Give this document a title of a few words, and name its subject.\n\n{text}")
    with s.assistant():
        s += 'Title: "' + bw.gen("title", max_tokens=12, stop=['"', ":", "\n"]) + '"'
        s += "\nSubject:" + bw.select("subject", SUBJECTS)


def main(engine: bw.Engine) -> list[bw.State]:
    """Sort the folder; print a line a document and what sharing saved."""
    documents = load()
    outcomes = triage.run_batch(
        [{"text": document.text} for document in documents],
        engine=engine,
        max_concurrency=6,
        errors="return",
    )
    states = []
    for document, outcome in zip(documents, outcomes, strict=True):
        if isinstance(outcome, Exception):
            print(f"{document.name:15} failed: {outcome}")
            continue
        states.append(outcome)
        print(f"{document.name:15} {outcome['subject'].strip():10} {outcome['title'].strip()}")

    print("\nThe last document:")
    print(states[-1].explain())
    bills = [state.explain().savings for state in states]
    cached, prompt = sum(b.cached_tokens for b in bills), sum(b.prompt_tokens for b in bills)
    print(f"all {len(bills)}: sharing saved {cached:,} of {prompt:,} prompt tokens")
    return states


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
