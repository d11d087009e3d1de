"""Tree of thought: a plan is grown step by step, several ways at once, and only good ways go on.

Each open plan gets three next steps; each step is judged, on a scratch copy, by the probability
that the model calls it useful; the best two plans of a level go on. Shows forks of forks, copies,
and sampling that a seed makes repeatable though all branches run at once. A plan's past is never
read twice: see how little is `computed` in the table.

    python examples/tree_of_thought.py
    branchwork run examples/tree_of_thought.py --arg task="Bake a cake for a birthday"
"""

from __future__ import annotations

from dataclasses import dataclass

import branchwork as bw

TASK = "Plan a picnic by the river for friends"
DEPTH = 3
FANOUT = 3
KEEP = 2

EXAMPLE = """\
Task: Repair a bicycle with a flat tyre
Step 1: Turn the bicycle over and take off the wheel.
Step 2: Find the hole in the tube and put a patch on it.
Step 3: Put the wheel back and fill it with air.

Task: Write a letter to an old teacher
Step 1: Find out where the teacher lives now.
Step 2: Tell in the letter what became of you.
Step 3: Put a stamp on it and take it to the post office.

"""


@dataclass(frozen=True)
class Plan:
    """An open branch, its steps so far, and what each was worth to its judge (0 to 1)."""

    state: bw.State
    steps: tuple[str, ...] = ()
    worths: tuple[float, ...] = ()

    @property
    def worth(self) -> float:
        """The mean over all steps."""
        return sum(self.worths) / len(self.worths)


def grow(plan: Plan, number: int) -> list[tuple[bw.State, bw.State]]:
    """Begin the next steps of one plan, each with its judge. Nothing waits: all run at once."""
    pairs = []
    for branch in plan.state.fork(FANOUT):
        branch += f"Step {number}:" + bw.gen("step", max_tokens=20, min_tokens=4, stop=[".", "\n"])
        branch += ".\n"
        with branch.copy() as judge:
            judge += "This step is" + bw.select("verdict", [" useful", " useless"])
        pairs.append((branch, judge))
    return pairs


@bw.program(temperature=0.7, top_p=0.9, seed=7)
def think(s: bw.State, task: str = TASK) -> Plan:
    """The best plan that was found."""
    s += f"{EXAMPLE}Task: {task}\n"
    plans = [Plan(s)]
    for number in range(1, DEPTH + 1):
        grown = [(plan, *pair) for plan in plans for pair in grow(plan, number)]
        found: dict[tuple[str, ...], Plan] = {}
        for plan, branch, judge in grown:
            steps = (*plan.steps, branch["step"].strip())
            worth = judge.scores("verdict")[" useful"].probability
            found.setdefault(steps, Plan(branch, steps, (*plan.worths, worth)))
        plans = sorted(found.values(), key=lambda plan: -plan.worth)[:KEEP]
    s += "".join(f"Step {i}: {step}.\n" for i, step in enumerate(plans[0].steps, start=1))
    return plans[0]


def main(engine: bw.Engine) -> bw.State:
    """Search once and print the best plan."""
    state = think.run(engine=engine)
    plan = state.returned
    print(f"Task: {TASK}")
    for step, worth in zip(plan.steps, plan.worths, strict=True):
        print(f"  {worth:4.0%}  {step}")
    print(f"  {plan.worth:4.0%}  the whole plan\n")
    print(state.explain())
    return state


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
