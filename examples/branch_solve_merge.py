"""A judge that splits its work: branch into criteria, solve each alone, merge the marks.

Two answers to one question are marked by three criteria, one branch an answer and criterion, all
six at once; the marks are merged, and the model says what speaks for the winner. Shows nested
forks, and scores used as numbers: a mark is the probability of the good one of two words, which
tells answers apart even where the likelier word is the same. The question is read once, and each
answer once.

    python examples/branch_solve_merge.py
    branchwork run examples/branch_solve_merge.py
"""

from __future__ import annotations

from dataclasses import dataclass

import branchwork as bw

QUESTION = "Why do leaves turn yellow in autumn?"
ANSWERS = {
    "A": "Leaves are nice. I like summer better because it is warm and I can swim in the lake.",
    "B": "In autumn the tree takes back the green chlorophyll from its leaves. The yellow colour, "
    "which was there all summer, can then be seen.",
}


@dataclass(frozen=True)
class Criterion:
    """A sentence that the model ends with a good or a bad word."""

    name: str
    text: str
    good: str
    bad: str


CRITERIA = [
    Criterion("relevance", "The relevance of this answer is", " good", " bad"),
    Criterion("clarity", "The clarity of this answer is", " good", " bad"),
    Criterion("teacher", "The teacher said:", " Well done", " Try again"),
]


@dataclass(frozen=True)
class Verdict:
    """The winner, and each answer's mark (0 to 1) for each criterion."""

    winner: str
    marks: dict[str, list[float]]

    def total(self, name: str) -> float:
        """The merged mark of an answer: the mean."""
        return sum(self.marks[name]) / len(self.marks[name])


@bw.program
def judge(s: bw.State, question: str = QUESTION) -> Verdict:
    """Mark all answers and name the best one."""
    s += f"Question: {question}\nAnswer:"
    solving = {}
    for answer, (name, text) in zip(s.fork(len(ANSWERS)), ANSWERS.items(), strict=True):
        answer += f" {text}\n"
        solving[name] = answer.fork(len(CRITERIA))
        for branch, criterion in zip(solving[name], CRITERIA, strict=True):
            branch += criterion.text + bw.select("mark", [criterion.good, criterion.bad])

    marks = {
        name: [
            branch.scores("mark")[criterion.good].probability
            for branch, criterion in zip(branches, CRITERIA, strict=True)
        ]
        for name, branches in solving.items()
    }
    winner = max(marks, key=lambda name: sum(marks[name]))
    s += f" {ANSWERS[winner]}\nThis is the best answer, because it"
    s += bw.gen("reason", max_tokens=24, stop=[".", "\n"])
    return Verdict(winner, marks)


def main(engine: bw.Engine) -> bw.State:
    """Judge once; print the marks and the verdict."""
    state = judge.run(engine=engine)
    verdict = state.returned
    print(QUESTION)
    for name, text in ANSWERS.items():
        print(f"\n{name}: {text}")
        for criterion, mark in zip(CRITERIA, verdict.marks[name], strict=True):
            print(f"   {mark:4.0%}  {criterion.name}")
        print(f"   {verdict.total(name):4.0%}  merged")
    print(f"\nThe better answer is {verdict.winner}, because it {state['reason'].strip()}.\n")
    print(state.explain())
    return state


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
