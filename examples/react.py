"""A ReAct agent: the model thinks, picks a tool, reads what it gave, and so on until it can answer.

Two tools run on this machine: a calculator (arithmetic only, no `eval`) and a word search over the
documents in `data/`. Shows a loop of calls whose text only grows, so that every step finds all of
it in the cache; `select` for the action and for the sum, so that no reply has to be parsed; an
`async def` body, whose tools work in a thread while other programs go on; and a tool's failure told
to the model as text.

    python examples/react.py
    branchwork run examples/react.py --arg question="How many seats are in the reading room?"
"""

from __future__ import annotations

import ast
import asyncio
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from documents import load, search

import branchwork as bw

QUESTION = "How many chairs are in the reading room altogether?"
MOST_STEPS = 4

EXAMPLES = """\
Answer the question with the help of two tools. Search finds a text about the town. \
Calculate works out a sum.

Question: What do 3 tickets for the rowing boat cost?
Thought: I must find the price of a ticket.
Action: Search
Input: ticket rowing boat price
Result: A ticket for the rowing boat costs 5 euros.
Thought: One ticket costs 5 euros, so I must multiply 3 and 5.
Action: Calculate
Input: 3 * 5
Result: 15
Thought: I know the result.
Action: Answer
Input: 15 euros

Question: How old was the bridge in 1950?
Thought: I must find the year of the bridge.
Action: Search
Input: bridge built year
Result: The stone bridge was built in 1802.
Thought: It was built in 1802, so I must subtract 1802 from 1950.
Action: Calculate
Input: 1950 - 1802
Result: 148
Thought: I know the result.
Action: Answer
Input: 148 years

Question: Who painted the sign of the inn?
Thought: I must find the painter of the sign.
Action: Search
Input: sign inn painter
Result: The sign of the inn was painted by Anna Feld.
Thought: I know the result.
Action: Answer
Input: Anna Feld

"""

OPERATIONS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ToolError(Exception):
    """A tool cannot do what it was asked; the text is for the model."""


def calculate(text: str) -> str:
    """The value of a sum of numbers with + - * / and brackets."""
    if len(text) > 100:
        raise ToolError("this sum is too long")
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
        whole = int(value)
        return str(whole) if whole == value else f"{value:.4f}".rstrip("0").rstrip(".")
    except (SyntaxError, ValueError):
        raise ToolError(f"{text!r} is not a sum") from None
    except (ZeroDivisionError, OverflowError):
        raise ToolError(f"{text!r} has no value") from None


def _value(node: ast.expr) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ToolError("only numbers, + - * / and brackets are allowed")


def find(query: str) -> str:
    """The text of the document that shares most words with the query."""
    found = search(load(), query, most=1)
    if not found:
        raise ToolError("nothing was found")
    return found[0].text


TOOLS = {" Search": find, " Calculate": calculate}


OPERATORS = [" +", " -", " *", " /"]


@dataclass(frozen=True)
class Step:
    """What the agent did once. `result` is None where it answered."""

    thought: str
    action: str
    given: str
    result: str | None


def seen_numbers(question: str, steps: list[Step]) -> list[str]:
    """The numbers a sum can be made of, each once, as the model may write them."""
    text = " ".join([question, *(step.result or "" for step in steps)])
    return [f" {number}" for number in dict.fromkeys(re.findall(r"\d+", text))] or [" 0"]


@bw.program
async def agent(s: bw.State, question: str = QUESTION) -> list[Step]:
    """The steps; the last one's `given` is the answer, unless they ran out."""
    s += EXAMPLES + f"Question: {question}\n"
    steps: list[Step] = []
    for _ in range(MOST_STEPS):
        s += "Thought:" + bw.gen("thought", max_tokens=32, stop="\n")
        s += "\nAction:" + bw.select("action", [*TOOLS, " Answer"])
        s += "\nInput:"
        action = await s.get("action")
        if action == " Calculate":
            numbers = seen_numbers(question, steps)
            s += bw.select("a", numbers) + bw.select("op", OPERATORS) + bw.select("b", numbers)
            given = await s.get("a") + await s.get("op") + await s.get("b")
        else:
            s += bw.gen("input", max_tokens=24, stop="\n")
            given = await s.get("input")
        thought = await s.get("thought")
        if action == " Answer":
            steps.append(Step(thought.strip(), action.strip(), given.strip(), None))
            break
        try:
            result = await asyncio.to_thread(TOOLS[action], given)
        except ToolError as error:
            result = f"Error: {error}"
        s += f"\nResult: {result}\n"
        steps.append(Step(thought.strip(), action.strip(), given.strip(), result))
    return steps


def main(engine: bw.Engine) -> bw.State:
    """Answer one question and print every step."""
    state = agent.run(engine=engine)
    print(f"Question: {QUESTION}")
    for step in state.returned:
        print(f"  {step.thought}")
        print(f"    {step.action}({step.given!r})", f"-> {step.result}" if step.result else "")
    print()
    print(state.explain())
    return state


if __name__ == "__main__":
    with bw.Engine("smollm2") as default_engine:
        main(default_engine)
