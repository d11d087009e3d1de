"""The demo's program: a support ticket is sorted, answered three ways and judged, in one tree.

Written as a user would write it; everything about printing is in `commands/demo.py`. The rules and
examples at the top are the same for all calls, so the model reads them once.
"""

from __future__ import annotations

from typing import Any

from ..lang.dsl import gen, select, system, user
from ..lang.program import program
from ..lang.state import State

TICKET = "I was charged twice for my subscription this month. Please give me my money back."

RULES = (
    "You are the support desk of a small online bookshop. For each ticket you name its category "
    "and write one short, polite reply. Categories: billing (money, invoices, refunds), delivery "
    "(parcels that are late, lost or damaged), account (login, password, address). Never promise "
    "what you cannot do yourself."
)

EXAMPLES = (
    ("My parcel should have been here last Friday and the tracking page has not moved since.",
     "delivery",
     "I am sorry that your parcel is late. I have asked the carrier where it is and will write to "
     "you as soon as I know."),
    ("I forgot my password and the reset mail never arrives.",
     "account",
     "I am sorry that you cannot log in. I have sent the reset mail again; please look into your "
     "spam folder as well."),
    ("The invoice shows 30 euros but the book costs 20 euros in your shop.",
     "billing",
     "Thank you for telling us. The invoice is wrong, and we will send you a correct one and "
     "return the difference."),
    ("Two pages of the cookbook I ordered are torn.",
     "delivery",
     "I am sorry that the book is damaged. Please keep it; we will send you a new one today."),
)  # fmt: skip

CATEGORIES = (" billing", " delivery", " account")
STYLES = ("Reply:", "Friendly reply:", "Formal reply:")


@program
def triage(s: State, ticket: str) -> dict[str, Any]:
    """Sort one ticket, draft three replies, keep the one the model finds best."""
    s += system(RULES)
    for text, category, reply in EXAMPLES:
        s += user(f"Ticket: {text}")
        s.assistant(f"Category: {category}\nReply: {reply}")
    s += user(f"Ticket: {ticket}")
    with s.assistant():
        s += "Category:" + select("category", CATEGORIES)
        drafts = s.fork(len(STYLES))
        drafts += lambda i: f"\n{STYLES[i]}" + gen("reply", max_tokens=48, stop="\n")
        drafts += "\nQuality of this reply:" + select("verdict", (" good", " poor"))
        found = drafts.join()
        good = [draft.scores("verdict")[" good"].probability for draft in drafts]
        best = max(range(len(good)), key=good.__getitem__)
        s += "\nReply:" + found["reply"][best]
    return {"best": best, "good": good}
