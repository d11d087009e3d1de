"""The audit: every page is free, in the tree, or a lease's own — exactly once.

Recomputes all counters and orders from the structure itself and compares. Reads only, trusts
nothing: it must end, and end in AuditError, on a tree that has gone wrong. Called by
`cache.PrefixCache.audit`: after every step of the tests' state machine, now and then in service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .evict import evictable
from .key import TOKEN_BYTES, n_tokens
from .lease import Lease
from .node import Node, Root
from .pages import FreePages
from .tree import Tree

MAX_PROBLEMS = 20


class AuditError(RuntimeError):
    """The cache contradicts itself. `problems` has one sentence for each contradiction found."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - MAX_PROBLEMS
        tail = [f"and {more} more"] if more > 0 else []
        super().__init__("; ".join(problems[:MAX_PROBLEMS] + tail))
        self.problems = problems


def audit(tree: Tree, free: FreePages, leases: list[Lease]) -> None:
    """Compare everything with everything; raises AuditError with all problems found."""
    problems: list[str] = []
    nodes = _nodes(tree, problems)
    for node in nodes:
        problems += _check_node(node, tree.page_size)
    problems += _check_counters(tree, nodes)
    problems += _check_locks(nodes, leases)
    problems += _check_queue(tree, nodes)
    for lease in leases:
        problems += _check_lease(lease, tree)
    problems += _check_pages(nodes, free, leases)
    if problems:
        raise AuditError(problems)


def _nodes(tree: Tree, problems: list[str]) -> list[Node]:
    """All nodes, roots too, parents first; a node met twice is reported and not entered again."""
    nodes: list[Node] = []
    seen: set[int] = set()
    todo: list[Node] = []
    for name, root in tree.roots.items():
        if not isinstance(root, Root) or root.namespace != name or root.parent is not None:
            problems.append(f"the root of namespace {name!r} is not its root")
        todo.append(root)
    while todo:
        node = todo.pop()
        if id(node) in seen:
            problems.append(f"{_name(node)} is reachable twice")
            continue
        seen.add(id(node))
        nodes.append(node)
        todo += node.children.values()
    return nodes


def _name(node: Node) -> str:
    if isinstance(node, Root):
        return f"root {node.namespace!r}"
    return f"node {node.born} (pages {node.pages[:4]}{'...' if len(node.pages) > 4 else ''})"


def _check_node(node: Node, page_size: int) -> Iterable[str]:
    """Lengths, children and their order, the writer's place."""
    name, size = _name(node), n_tokens(node.key)
    if len(node.key) % TOKEN_BYTES or len(node.pages) != -(-size // page_size):
        yield f"{name} has {len(node.key)} key bytes for {len(node.pages)} pages of {page_size}"
    if not node.pages and not isinstance(node, Root):
        yield f"{name} is empty"
    if isinstance(node, Root) and not node.children and not node.locks:
        yield f"{name} is bare and unlocked"
    if size % page_size and node.children:
        yield f"{name} has children behind a partial page"
    if node.writer is not None and not size % page_size:
        yield f"{name} has a writer and no partial page"
    if node.firsts != sorted(node.children):
        yield f"{name}: the order of its children does not match them"
    for first, child in node.children.items():
        if child.parent is not node or child.key[: page_size * TOKEN_BYTES] != first:
            yield f"{_name(child)} is misplaced below {name}"


def _check_counters(tree: Tree, nodes: list[Node]) -> Iterable[str]:
    counted = {
        "nodes": (tree.n_nodes, sum(not isinstance(n, Root) for n in nodes)),
        "cached pages": (tree.n_pages, sum(len(n.pages) for n in nodes)),
        "evictable pages": (tree.evictable_pages, sum(len(n.pages) for n in nodes if not n.locks)),
    }
    for what, (counter, real) in counted.items():
        if counter != real:
            yield f"the counter of {what} says {counter}, there are {real}"


def _check_locks(nodes: list[Node], leases: list[Lease]) -> Iterable[str]:
    holds = Counter(id(lease.node) for lease in leases)
    holds.update(id(lease.source) for lease in leases if lease.source is not None)
    for node in nodes:
        real = holds.pop(id(node), 0) + sum(child.locks > 0 for child in node.children.values())
        if node.locks != real:
            yield f"{_name(node)} has {node.locks} locks, it should have {real}"
    if holds:
        yield f"{len(holds)} nodes held by leases are not in the tree"


def _check_queue(tree: Tree, nodes: list[Node]) -> Iterable[str]:
    live = tree.queue.live()
    for node in nodes:
        if evictable(node) and live.get(node.ticket) is not node:
            yield f"{_name(node)} is evictable and not queued"
    if len(tree.queue.heap) > tree.queue.limit:
        yield f"the eviction queue has {len(tree.queue.heap)} entries, over {tree.queue.limit}"


def _check_lease(lease: Lease, tree: Tree) -> Iterable[str]:
    name, size = f"lease {lease.id}", tree.page_size
    path: list[Node] = []
    node = lease.node
    while node.parent is not None and len(path) <= tree.n_nodes:
        path.append(node)
        node = node.parent
    if tree.roots.get(lease.namespace) is not node:
        yield f"{name} hangs on no root"
        return
    path.reverse()
    if [page for n in path for page in n.pages] != lease.pages[: lease.shared]:
        yield f"{name}: its {lease.shared} shared pages are not those of its path"
    if b"".join(n.key for n in path) != lease.key[: lease.in_tree * TOKEN_BYTES]:
        yield f"{name}: its first {lease.in_tree} tokens are not those of its path"
    if bool(lease.in_tree % size) != (lease.node.writer == lease.id):
        yield f"{name}: a begun page in the tree must have its lease as writer"
    if n_tokens(lease.key) > len(lease.pages) * size:
        yield f"{name} has {n_tokens(lease.key)} tokens and {len(lease.pages)} pages"
    if (lease.copy is None) != (lease.source is None):
        yield f"{name}: a tail copy and its locked source go together"
    if lease.copy is not None and lease.source is not None:
        held = [page for n in tree.path(lease.source) for page in n.pages]
        if lease.copy.src not in held or lease.copy.dst != lease.pages[lease.shared]:
            yield f"{name}: its tail copy does not lead from a locked page to its own"


def _check_pages(nodes: list[Node], free: FreePages, leases: list[Lease]) -> Iterable[str]:
    own = [page for lease in leases for page in lease.pages[lease.shared :]]
    free_ids = free.ids()
    if any(not free.is_free(page) for page in free_ids):
        yield "the free list holds a page that is marked as taken"
    times = Counter(free_ids)
    times.update(own)
    times.update(page for node in nodes for page in node.pages)
    for page in range(free.total):
        if times[page] != 1:
            yield f"page {page} has {times[page]} owners"
    if len(times) > free.total:
        yield "a page is in use that the pool does not have"
    writers = {lease.id for lease in leases}
    for node in nodes:
        if node.writer is not None and node.writer not in writers:
            yield f"{_name(node)} has a writer that is gone"
