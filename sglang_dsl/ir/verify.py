"""What a graph has to obey. `verify` raises the first broken rule, `findings` lists all.

Sub-graphs (arms of a Switch, bodies of Loop and Map) are checked by the same rules: in them a node without a context
continues the text of the node that holds them, and values of the enclosing graph are in sight.

Each rule is one function; `RULES` names them. A rule gets the node under check and the `CheckedGraph` it stands in, and yields a
sentence for each way in which it is broken.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..errors import GraphError, Origin
from .graph import Graph, main_line
from .nodes import (
    Arm,
    Fork,
    Gen,
    Input,
    Join,
    Loop,
    Map,
    Node,
    Plain,
    Raw,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    ToolNode,
    data_of,
    references_in,
    subgraphs,
)
from .operations import OPERATION_NAMES
from .semantics import same_key

VALUE_KINDS = (Input, Gen, Select, Join, ToolNode, Switch, Loop, Map)
TEXT_KINDS = (Text, RoleBegin, RoleEnd, Gen, Select, Fork, Switch, Loop)
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class CheckedGraph:
    """A graph being checked and what lies around it. Owner: one call of `findings`.

    seen: nodes of this graph before the one under check. outer: nodes of the enclosing graphs that are in sight.
    role_at: the role open after each seen node (None: none). open_role: the role open where this graph starts.
    """

    graph: Graph
    outer: ChainMap[str, Node] = field(default_factory=ChainMap)
    open_role: str | None = None
    seen: dict[str, Node] = field(default_factory=dict)
    role_at: dict[str, str | None] = field(default_factory=dict)

    def find(self, node_id: str) -> Node | None:
        """The node of this id, if it comes before the one under check."""
        return self.seen.get(node_id) or self.outer.get(node_id)

    def role_before(self, node: Node) -> str | None:
        """The role that is open where `node` starts."""
        return self.open_role if node.context is None else self.role_at.get(node.context)


Rule: TypeAlias = Callable[[CheckedGraph, Node], Iterator[str]]


def role_after(site: CheckedGraph, node: Node) -> str | None:
    """The role that is open after a node."""
    match node:
        case RoleBegin(role=role):
            return role
        case RoleEnd():
            return None
        case Switch(arms=arms) if arms:
            return _role_at_end(arms[0].graph, site.role_before(node))
    return site.role_before(node)


def _role_at_end(graph: Graph, role: str | None) -> str | None:
    """The role open at the end of a graph's main line (its branches have roles of their own)."""
    for node in main_line(graph):
        match node:
            case RoleBegin():
                role = node.role
            case RoleEnd():
                role = None
            case Switch(arms=arms) if arms:
                role = _role_at_end(arms[0].graph, role)
    return role


def _context(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A context is an earlier node of the same graph, so every path ends at the root and none is a circle."""
    if node.context is not None and node.context not in site.seen:
        where = "is later in the graph" if node.context in site.graph else "does not exist in this graph"
        yield f"its context {node.context!r} {where}"


def _root(site: CheckedGraph, node: Node) -> Iterator[str]:
    """All text of a graph hangs on one root, so it has one beginning."""
    if node.context is None and isinstance(node, TEXT_KINDS):
        first = next((n for n in site.seen.values() if n.context is None and isinstance(n, TEXT_KINDS)), None)
        if first is not None:
            yield f"it has no context, and the graph begins with {first.id!r} already"


def _branch(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A branch index says which branch of a Fork starts here."""
    if node.branch is None:
        return
    parent = site.seen.get(node.context or "")
    if not isinstance(parent, Fork):
        yield f"it has branch index {node.branch}, but its context {node.context!r} is not a fork"
    elif not 0 <= node.branch < parent.size:
        yield f"branch {node.branch} of fork {parent.id!r}, which has {parent.size} branches"


def _reference(site: CheckedGraph, node: Node) -> Iterator[str]:
    """What a node mentions is a value that exists before it."""
    for node_id in (*data_of(node), *node.control):
        target = site.find(node_id)
        if target is None:
            where = "comes later" if node_id in site.graph else "does not exist"
            yield f"it refers to {node_id!r}, which {where}"
        elif not isinstance(target, VALUE_KINDS):
            yield f"it refers to {node_id!r}, a {target.kind} node, which has no value"


def _operation(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Recorded operations are those of the closed table."""
    for reference in (r for mentioned in node.mentions() for r in references_in(mentioned)):
        for operation in reference.operations:
            if operation.name not in OPERATION_NAMES:
                yield f"operation {operation.name!r} on {reference.node_id!r} is unknown"


def _role(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Roles are opened and closed in pairs, and do not nest."""
    open_role = site.role_before(node)
    match node:
        case RoleBegin(role=role) if open_role is not None:
            yield f"role {role!r} begins inside the open role {open_role!r}"
        case RoleBegin(role=role) if not role:
            yield "the role has no name"
        case RoleEnd(role=role) if open_role is None:
            yield f"role {role!r} ends, but no role is open"
        case RoleEnd(role=role) if role != open_role:
            yield f"role {role!r} ends, but {open_role!r} is open"


def _arm_roles(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Whatever way a program takes, the same role is open after it."""
    before = site.role_before(node)
    match node:
        case Switch(arms=arms):
            ends = {_role_at_end(arm.graph, before) for arm in arms}
            if len(ends) > 1:
                yield f"its arms end with different open roles: {', '.join(sorted(str(e) for e in ends))}"
        case Loop(body=body) if _role_at_end(body, before) != before:
            yield "its body leaves a role open or closes one it did not open"


def _fork(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A fork has branches."""
    if isinstance(node, Fork) and node.size < 1:
        yield f"its size is {node.size}"


def _join(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A join gathers the branches of one earlier fork, each from a tip on that very branch."""
    if not isinstance(node, Join):
        return
    fork = site.find(node.fork)
    if not isinstance(fork, Fork):
        yield f"{node.fork!r} is not a fork before it"
        return
    for what, given in (("tips", node.tips), ("values", node.values)):
        if len(given) != fork.size:
            yield f"it has {len(given)} {what} for the {fork.size} branches of fork {fork.id!r}"
    if any(not 0 <= index < fork.size for index in node.skipped):
        yield f"it skips {list(node.skipped)} of the {fork.size} branches of fork {fork.id!r}"
    for index, tip in enumerate(node.tips[: fork.size]):
        if tip != fork.id and _branch_of(site, fork.id, tip) != index:
            yield f"tip {tip!r} does not lie on branch {index} of fork {fork.id!r}"


def _branch_of(site: CheckedGraph, fork_id: str, tip: str) -> int | None:
    """Which branch of the fork the context path of `tip` runs through."""
    current = site.find(tip)
    while current is not None and current.context != fork_id:
        current = site.find(current.context or "")
    return None if current is None else current.branch


def _join_mode(site: CheckedGraph, node: Node) -> Iterator[str]:
    """`first` and `quorum` say how many; `best` says by what."""
    if not isinstance(node, Join):
        return
    if node.mode in ("first", "quorum"):
        most = len(node.tips) - len(set(node.skipped))
        if node.k is None or not 1 <= node.k <= max(most, 1):
            yield f"mode {node.mode!r} needs k between 1 and {most}, and k is {node.k}"
    elif node.k is not None:
        yield f"mode {node.mode!r} takes no k, and k is {node.k}"
    if (node.mode == "best") != (node.key is not None):
        yield "mode 'best' needs a key" if node.mode == "best" else f"mode {node.mode!r} takes no key"


def _select(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A select has something to choose from."""
    if isinstance(node, Select) and not node.choices:
        yield "it has no choices"


def _switch(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Exactly one arm fits each possible value."""
    if not isinstance(node, Switch):
        return
    if not node.arms:
        yield "it has no arms"
    if sum(arm.values is None for arm in node.arms) > 1:
        yield "more than one arm takes every other value"
    named: dict[Hashable, list[object]] = {}
    for value in (value for arm in node.arms for value in arm.values or ()):
        named.setdefault(same_key(value), []).append(value)
    for equal in named.values():
        if len(equal) > 1:
            yield f"value {equal[0]!r} is in {len(equal)} arms"
    if not node.assumed and (missing := _uncovered(site, node.on, node.arms)):
        yield f"no arm takes {', '.join(missing)}"


def _uncovered(site: CheckedGraph, on: Reference, arms: tuple[Arm, ...]) -> list[str]:
    """Choices of the select a switch decides on that no arm takes (nothing where the choices are not known)."""
    target = site.find(on.node_id)
    if not isinstance(target, Select) or on.operations or any(arm.values is None for arm in arms):
        return []
    taken = {same_key(value) for arm in arms for value in arm.values or ()}
    return [repr(c) for c in target.choices if isinstance(c, str) and same_key(c) not in taken]


def _loop(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A loop is bounded, and is stopped by a value of its own body."""
    if not isinstance(node, Loop):
        return
    if node.limit < 1:
        yield f"its limit is {node.limit}"
    if node.until is not None and node.until.node_id not in node.body:
        yield f"it repeats until {node.until.node_id!r}, which is not in its body"


def _map(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A map's item is an Input of its body."""
    if isinstance(node, Map) and (node.item not in node.body or not isinstance(node.body[node.item], Input)):
        yield f"its item {node.item!r} is not an input of its body"


def _result(site: CheckedGraph, node: Node) -> Iterator[str]:
    """The result of an arm or a body is made of values in sight at its end."""
    pairs = [(arm.result, arm.graph) for arm in node.arms] if isinstance(node, Switch) else []
    if isinstance(node, Loop | Map):
        pairs.append((node.result, node.body))
    for expression, graph in pairs:
        for reference in references_in(expression):
            target = graph[reference.node_id] if reference.node_id in graph else site.find(reference.node_id)
            if not isinstance(target, VALUE_KINDS):
                yield f"its result mentions {reference.node_id!r}, which is no value in sight"


def _name(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Names are not empty; an input's is its own."""
    if getattr(node, "name", None) == "":
        yield "its name is empty"
    if isinstance(node, Input):
        twin = next((n for n in site.seen.values() if isinstance(n, Input) and n.name == node.name), None)
        if twin is not None:
            yield f"input {node.name!r} exists already as {twin.id!r}"


def _number(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Counts and times are in range."""
    timeout_s = getattr(node, "timeout_s", None)
    if timeout_s is not None and not timeout_s > 0:
        yield f"timeout_s is {timeout_s}"
    if isinstance(node, Gen):
        if node.retries < 0:
            yield f"retries is {node.retries}"
        if node.sample < 0:
            yield f"sample is {node.sample}"
        if node.reasoning is not None and not (node.reasoning.begin and node.reasoning.end):
            yield "a reasoning marker is empty"


def _text(site: CheckedGraph, node: Node) -> Iterator[str]:
    """Text can be written as UTF-8 (no lone surrogates), so that a tokenizer and a file can hold it."""
    if isinstance(node, Text):
        for piece in node.pieces:
            if isinstance(piece, Plain | Raw) and SURROGATE.search(piece.text):
                yield "its text holds a lone surrogate, which no tokenizer takes"


def _return(site: CheckedGraph, node: Node) -> Iterator[str]:
    """A program returns once."""
    if isinstance(node, Return) and any(isinstance(n, Return) for n in site.seen.values()):
        yield "the graph has a return already"


def _shadow(site: CheckedGraph, node: Node) -> Iterator[str]:
    """An id means one node, in sub-graphs too."""
    if node.id in site.outer:
        yield "its id is taken by a node of the enclosing graph"
    if not node.id:
        yield "its id is empty"


RULES: Mapping[str, Rule] = {
    "context": _context,
    "root": _root,
    "branch": _branch,
    "reference": _reference,
    "operation": _operation,
    "role": _role,
    "arm-roles": _arm_roles,
    "fork": _fork,
    "join": _join,
    "join-mode": _join_mode,
    "select": _select,
    "switch": _switch,
    "loop": _loop,
    "map": _map,
    "result": _result,
    "name": _name,
    "number": _number,
    "text": _text,
    "return": _return,
    "id": _shadow,
}
HINTS: Mapping[str, str] = {
    "role": "close one role before the next: `s += user(...)`, or the with-form",
    "join": "join a fork from the state that made it, with `branches.join(...)`",
    "join-mode": "mode='first' and 'quorum' take k=; mode='best' takes key=",
    "switch": "give an arm for every choice, or one for all others",
    "operation": f"operations a graph can hold: {', '.join(OPERATION_NAMES)}",
    "text": "text.encode('utf-8', 'replace').decode() drops such characters",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one node."""

    rule: str
    node_id: str
    what: str
    hint: str = ""
    origin: Origin | None = None


def verify(graph: Graph) -> None:
    """Check every rule.

    Raises:
        GraphError: the first broken rule, with its node and the user's line, and how many more there are.
    """
    found = findings(graph)
    if not found:
        return
    first = found[0]
    more = f" ({len(found) - 1} more: verify.findings(graph) lists them)" if len(found) > 1 else ""
    raise GraphError(
        f"rule {first.rule!r} at node {first.node_id!r}: {first.what}{more}", hint=first.hint, origin=first.origin
    )


def findings(graph: Graph) -> list[Finding]:
    """Every broken rule, in node order. Empty for a sound graph."""
    return list(_check(CheckedGraph(graph)))


def _check(site: CheckedGraph) -> Iterator[Finding]:
    for node in site.graph:
        for rule, check in RULES.items():
            for what in check(site, node):
                yield Finding(rule, node.id, what, HINTS.get(rule, ""), node.origin)
        yield from _check_inside(site, node)
        site.role_at[node.id] = role_after(site, node)
        site.seen[node.id] = node


def _check_inside(site: CheckedGraph, node: Node) -> Iterator[Finding]:
    for inner in subgraphs(node):
        yield from _check(
            CheckedGraph(inner, outer=ChainMap(site.seen, *site.outer.maps), open_role=site.role_before(node))
        )
