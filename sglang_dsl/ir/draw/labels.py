"""What a node is called in a picture: plain words, unescaped. Each format escapes them in its own way.

Also: which ways a run took through the sub-graphs of a node, and what it gave there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ..execution import Outcome
from ..explain import incomplete
from ..graph import Graph
from ..nodes import (
    Arm,
    Break,
    Concat,
    Constant,
    DictOf,
    Expression,
    Fork,
    Gen,
    Input,
    Join,
    ListOf,
    Loop,
    Map,
    Node,
    Piece,
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
    subgraphs,
)
from ..operations import describe
from ..semantics import arm_of, evaluate, every_node
from ..specs import spelled

LABEL_CHARACTERS = 60
BREAK_CHARACTERS = LABEL_CHARACTERS - len("break: ")
REASON_CHARACTERS = 240


def shorten(text: str, limit: int = LABEL_CHARACTERS) -> str:
    """`text` on one line; where it is longer than `limit` its middle is cut out (prompts often differ at the end)."""
    line = " ".join((text if len(text) < 20 * limit else f"{text[: 4 * limit]} {text[-4 * limit :]}").split())
    if len(line) <= limit:
        return printable(line)
    keep = limit * 2 // 3
    return printable(f"{line[:keep].rstrip()} … {line[keep + 3 - limit :].lstrip()}")


def printable(text: str) -> str:
    """`text` without what moves a cursor, rings a bell or turns the writing direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def missing_of(graph: Graph) -> str:
    """Where tracing stopped first, and how often it did besides; "" for a graph that is whole."""
    found = incomplete(graph)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{printable(found[0])}{more}" if found else ""


Names: TypeAlias = Mapping[str, str]  # node id -> what its value is called


def names_of(graph: Graph) -> dict[str, str]:
    """What each value of a graph and its sub-graphs is called: its name where it has one."""
    return {node.id: getattr(node, "name", None) or node.id for node in every_node(graph)}


def title(node: Node, names: Names) -> str:
    """One short line that says what the node is."""
    return shorten(_title(node, names)) or "empty text"


def _title(node: Node, names: Names) -> str:
    match node:
        case Input():
            return f"input {node.name}: {node.type_name}"
        case Text():
            return text_of(node, names)
        case RoleBegin() | RoleEnd():
            return f"{'begin' if isinstance(node, RoleBegin) else 'end'} {node.role}"
        case Fork():
            return f"fork × {node.size}"
        case Switch():
            return f"switch on {show_reference(node.on, names)}"
        case ToolNode():
            return f"tool {node.tool}"
        case Break():
            return f"break: {node.reason}"
        case Return():
            return f"return {show(node.value, names)}"
        case Join():
            return _named("join", node.name) + f" ({node.mode}{f' {node.k}' if node.k else ''})"
        case Gen() | Select() | Loop() | Map():
            return _named(node.kind, node.name)
    return node.kind


def _named(kind: str, name: str | None) -> str:
    return f"{kind} {name}" if name is not None else kind


def notes(node: Node) -> Iterator[str]:
    """Short facts about a node, for badges and second lines."""
    match node:
        case Gen():
            yield f"max {node.sampling.most_tokens}"
            yield "greedy" if node.sampling.greedy else f"T {node.sampling.temperature:g}"
            if node.constraint is not None:
                yield node.constraint.kind.replace("_", " ")
            if node.retries:
                yield f"{node.retries} retries"
        case Select():
            yield f"{len(node.choices)} choices"
            yield node.method
        case Loop():
            yield f"at most {node.limit}"
        case Switch(assumed=True):
            yield "assumed"
        case ToolNode(pure=True):
            yield "pure"
        case Break(reason=reason) if len(reason) > BREAK_CHARACTERS:
            yield shorten(reason, REASON_CHARACTERS)  # the title has room for its beginning and end only
    if isinstance(node, Gen | Select) and node.model is not None:
        yield f"model {node.model}"


def counts(outcome: Outcome | None) -> str:
    """Prompt, cached and generated tokens of a finished call; empty for what is not one."""
    if outcome is None or outcome.meta is None:
        return ""
    meta = outcome.meta
    return f"{meta.prompt_tokens} prompt, {meta.cached_tokens} cached, {meta.generated_tokens} generated"


def text_of(node: Text, names: Names) -> str:
    """The text of a node, values shown as their references."""
    return "".join(show_piece(piece, names) for piece in node.pieces)


def show_piece(piece: Piece | str, names: Names) -> str:
    """A piece as text; a reference in braces, as in an f-string."""
    match piece:
        case Plain(text) | Raw(text):
            return text
        case Reference():
            return "{" + show_reference(piece, names) + "}"
    return piece


def show_reference(reference: Reference, names: Names) -> str:
    """A reference as one would write it: `topic.strip()[2]`."""
    return names.get(reference.node_id, reference.node_id) + "".join(describe(o) for o in reference.operations)


def show(expression: Expression | None, names: Names) -> str:
    """An expression as one would write it in Python."""
    match expression:
        case None:
            return "—"
        case Constant(value):
            return spelled(value)
        case Reference():
            return show_reference(expression, names)
        case ListOf(items):
            return f"[{', '.join(show(i, names) for i in items)}]"
        case DictOf(items):
            return "{" + ", ".join(f"{k!r}: {show(v, names)}" for k, v in items) + "}"
        case Concat(parts):
            return " + ".join(show(p, names) for p in parts)


def arm_label(arm: Arm, arms: tuple[Arm, ...]) -> str:
    """What has to hold for an arm: its values; `any` where nothing is known, `otherwise` for the rest."""
    if arm.values is not None:
        return " | ".join(shorten(str(v), 24) for v in arm.values)
    return "any" if len(arms) == 1 else "otherwise"


T = TypeVar("T")


class Instance(NamedTuple, Generic[T]):
    """One execution of a node. id: the node's own, in a sub-graph with the region, and the arm, turn or item, in front.

    given: what it left, an outcome or an error.
    """

    node: Node
    id: str
    given: T


def instances(graph: Graph, given: Mapping[str, T], prefix: str = "") -> Iterator[Instance[T]]:
    """Every execution of every node of a graph and its sub-graphs that left something."""
    for node in graph:
        node_id = prefix + node.id
        if node_id in given:
            yield Instance(node, node_id, given[node_id])
        for number, inner in enumerate(subgraphs(node)):
            for label in [str(number)] if isinstance(node, Switch) else _labels(f"{node_id}/", given):
                yield from instances(inner, given, f"{node_id}/{label}/")


def _labels(prefix: str, given: Mapping[str, object]) -> list[str]:
    """The turns of a loop or items of a map that left something, in order."""
    found = {key[len(prefix) :].partition("/")[0] for key in given if key.startswith(prefix)}
    return sorted(found, key=lambda label: (len(label), label))


def in_graph(graph: Graph, given: Mapping[str, T]) -> Iterator[tuple[str, T]]:
    """What executions left, under the ids the nodes have in the graph; of a loop in the order of its turns, and so on."""
    yield from given.items()
    for instance in instances(graph, given):
        yield instance.node.id, instance.given


def by_node(graph: Graph, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Outcomes under the ids the nodes have in the graph: of a loop the last turn's, of a map the last item's."""
    return dict(in_graph(graph, outcomes))


def ways(node: Node) -> Iterator[tuple[str, Graph]]:
    """The sub-graphs of a node and when each is taken."""
    match node:
        case Switch(arms=arms):
            for arm in arms:
                yield arm_label(arm, arms), arm.graph
        case Loop(body=body):
            yield f"at most {node.limit} times", body
        case Map(body=body):
            yield "for each item", body


def ways_taken(
    node: Node, outcomes: Mapping[str, Outcome], errors: Mapping[str, BaseException] | None = None
) -> list[bool]:
    """For each sub-graph of a node whether the run came through it. An arm is known by the value that decided."""
    if isinstance(node, Switch) and node.on.node_id in outcomes:
        taken = arm_of(node.arms, evaluate(node.on, lambda node_id: outcomes[node_id].value))
        return [number == taken for number in range(len(node.arms))]
    return [_ran(graph, outcomes, errors or {}) for graph in subgraphs(node)]


def _ran(graph: Graph, outcomes: Mapping[str, Outcome], errors: Mapping[str, BaseException]) -> bool:
    return any(
        node.id in outcomes or node.id in errors or any(_ran(g, outcomes, errors) for g in subgraphs(node))
        for node in graph
    )
