"""Questions about a folder of documents, answered from what was found there, with a citation.

For each question a word search picks three documents of `data/`. The model reads them and answers,
names with `select` the document it has this from and, of that one, the sentence that says so: a
citation always exists, and no text has to be parsed. Shows plain Python in the middle of a program,
and three calls that build on each other: after the first, a question's documents come from the
cache. The quote is the sentence that the answer makes likelier than it is by itself (the method
"unconditional"), not the one that is likely anyway.

    python examples/rag.py
    branchwork run examples/rag.py --arg question="When was the library founded?"
"""

from __future__ import annotations

from dataclasses import dataclass

from documents import load, search

import branchwork as bw

RULES = "Answer the question in one short sentence, using only the documents."
QUESTIONS = [
    "How wide is the water wheel of the museum?",
    "Who founded the library?",
    "How often does the bus run?",
]


@dataclass(frozen=True)
class Answer:
    """What the model said, the document it names, and the sentence it quotes from it."""

    text: str
    document: str
    quote: str


@bw.program
def ask(s: bw.State, question: str = QUESTIONS[0]) -> Answer:
    """Answer one question from the folder."""
    found = {document.name: document for document in search(load(), question, most=3)}
    if not found:
        return Answer("No document shares a word with the question.", "", "")
    listed = "\n".join(f"[{name}] {document.text}" for name, document in found.items())
    s += bw.system(RULES)
    s += bw.user(f"{listed}\n\nQuestion: {question}")
    with s.assistant():
        s += "Answer:" + bw.gen("answer", max_tokens=32, stop="\n")
        s += "\nSource: [" + bw.select("document", list(found), method="token_mean") + "]"
        sentences = [sentence.text for sentence in found[s["document"]].sentences()]
        s += ': "' + bw.select("quote", sentences, method="unconditional") + '"'
    return Answer(s["answer"].strip(), s["document"], s["quote"])


def main(engine: bw.Engine) -> list[bw.State]:
    """Ask all questions at once; print each answer with its citation, and what sharing saved."""
    states = ask.run_batch([{"question": question} for question in QUESTIONS], engine=engine)
    for question, state in zip(QUESTIONS, states, strict=True):
        answer = state.returned
        print(f"{question}\n  {answer.text}\n  [{answer.document}] {answer.quote}\n")
    for state in states:
        print(state.explain(), end="\n\n")
    return states


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
