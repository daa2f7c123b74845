"""What a graph says ahead of a run: which calls can run together, what takes longest, and what can be said of its prompts.

The first is networkx over the dependencies: what has to exist before a node can run. Sub-graphs are looked at through the node that
holds them. Prompts are rendered by a model's meter.

Seams are places where encoding both sides together would give other tokens, before a choice and where a branch begins. What a
call will write is not known, so the seams around generated text are left out. A turn's marker never merges.

The prefix linter finds text that calls could share, and do not because something different stands before it. A prefix is shared up
to the first token that differs. Constant text behind a value, or behind words that differ from branch to branch, is computed
again for every call; moved in front of them it is computed once.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ChoiceBlankWarning, Origin
from .execution import Meter, Segment
from .graph import Graph, edges_into, main_line
from .nodes import (
    Constant,
    Fork,
    Gen,
    Input,
    Join,
    ListOf,
    Loop,
    Map,
    ModelCall,
    Node,
    Piece,
    Plain,
    Reference,
    Select,
    Switch,
    Text,
    subgraphs,
)

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class WeightedPath:
    """A path through the dependencies and the sum of its nodes' weights."""

    nodes: tuple[str, ...]
    weight: int


def dependencies(graph: Graph) -> nx.DiGraph[str]:
    """What has to have ended before what: context, data and control edges, and a join's tips.

    What a sub-graph needs of the graph around it is not among them: it is there when the sub-graph starts.
    """
    import networkx as nx

    needs: nx.DiGraph[str] = nx.DiGraph()
    needs.add_nodes_from(node.id for node in graph)
    for node in graph:
        sources = [source for source, _ in edges_into(node)] + list(node.tips if isinstance(node, Join) else ())
        needs.add_edges_from((source, node.id) for source in sources if source in graph)
    return needs


def calls_of(node: Node) -> int:
    """How many model calls a node stands for: itself, or those of its sub-graphs."""
    if isinstance(node, ModelCall):
        return 1
    return sum(calls_of(inner) for graph in subgraphs(node) for inner in graph)


def waves(graph: Graph) -> list[tuple[str, ...]]:
    """The calls in waves: all of a wave can run at once, given the waves before it."""
    import networkx as nx

    position = {node.id: i for i, node in enumerate(graph)}
    return [tuple(sorted(wave, key=position.__getitem__)) for wave in nx.topological_generations(_call_order(graph))]


def _call_order(graph: Graph) -> nx.DiGraph[str]:
    """The nodes that call a model, and which of them waits for which (only the nearest)."""
    import networkx as nx

    nearest: dict[str, set[str]] = {}
    order: nx.DiGraph[str] = nx.DiGraph()
    needs = dependencies(graph)
    for node_id in nx.topological_sort(needs):
        before = _nearest_before(graph[node_id], [nearest[source] for source in needs.predecessors(node_id)], nearest)
        if calls_of(graph[node_id]):
            order.add_node(node_id)
            order.add_edges_from((call, node_id) for call in before)
            before = {node_id}
        nearest[node_id] = before
    return order


def _nearest_before(node: Node, found: list[set[str]], nearest: Mapping[str, set[str]]) -> set[str]:
    """The calls before a node. Those before a fork are no longer near where it is joined, if a branch made any."""
    sets = {id(calls): calls for calls in found}
    if isinstance(node, Join) and any(nearest[tip] is not nearest[node.fork] for tip in node.tips if tip in nearest):
        sets.pop(id(nearest[node.fork]), None)
    return next(iter(sets.values())) if len(sets) == 1 else {call for calls in sets.values() for call in calls}


def sibling_groups(graph: Graph) -> list[tuple[str, ...]]:
    """Calls of one wave below the same fork: what belongs into one batch, sharing that fork's prefix."""
    fork_of: dict[str, str] = {}
    for node in graph:
        parent = graph[node.context] if node.context is not None else None
        if isinstance(parent, Fork) and node.branch is not None:
            fork_of[node.id] = parent.id
        elif parent is not None and parent.id in fork_of:
            fork_of[node.id] = fork_of[parent.id]
    groups: dict[tuple[int, str], list[str]] = {}
    for number, wave in enumerate(waves(graph)):
        for call in wave:
            groups.setdefault((number, fork_of.get(call, "")), []).append(call)
    return [tuple(group) for group in groups.values()]


def critical_path(graph: Graph, weight: Callable[[Node], int] | None = None) -> WeightedPath:
    """The path of dependencies with the largest sum of weights: what a run takes at least, however wide its batches.

    weight: of each node; by default the tokens it may generate.
    """
    import networkx as nx

    weigh = weight or generated_bound
    needs = dependencies(graph)
    weights = {node.id: weigh(node) for node in graph}
    weighted: nx.DiGraph[str] = nx.DiGraph()
    weighted.add_nodes_from(needs)
    weighted.add_edges_from((a, b, {"weight": weights[b]}) for a, b in needs.edges)
    roots = [node_id for node_id in needs if needs.in_degree(node_id) == 0]
    weighted.add_edges_from(("", root, {"weight": weights[root]}) for root in roots)
    path = nx.dag_longest_path(weighted, weight="weight")[1:] if roots else []
    return WeightedPath(tuple(path), sum(weights[node_id] for node_id in path))


def generated_bound(node: Node) -> int:
    """The most tokens a node can generate one after the other: a gen's `max_tokens`, 1 for a select (its choices are
    scored at once), the longest way through sub-graphs.
    """
    match node:
        case Gen():
            return node.sampling.most_tokens
        case Select():
            return 1
    inner = [critical_path(graph).weight for graph in subgraphs(node)]
    return max(inner, default=0) * getattr(node, "limit", 1)


def rendered(
    graph: Graph, meter: Meter, values: Mapping[str, str], before: Sequence[Node] = ()
) -> dict[str, list[Segment]]:
    """What each node adds to its prompt, sub-graphs included; every leaf's path is rendered once.

    A stretch between two seams has its tokens at its last segment. values: texts that are known, by node id. before:
    the path the graph continues.
    """
    parents = {node.context for node in graph}
    found: dict[str, list[Segment]] = {}
    paths: dict[str, list[Node]] = {}
    for leaf in (node for node in graph if node.id not in parents):
        fresh: dict[str, list[Segment]] = {}
        for segment in reversed(list(meter.render([*before, *_flat_path(graph, leaf.id, paths)], values))):
            if segment.node_id in found:
                break  # so is all that stands before it
            if segment.node_id in graph:
                fresh.setdefault(segment.node_id, []).insert(0, segment)
        found.update(fresh)
    for node in graph:
        for inner in subgraphs(node):
            found.update(rendered(inner, meter, values, [*before, *graph.path(node.id)[:-1]]))
    return found


def _flat_path(graph: Graph, node_id: str, paths: dict[str, list[Node]]) -> list[Node]:
    """The context path of a node; a node with sub-graphs stands for the way through it with the most nodes.

    paths: those up to each fork, found so far.
    """
    behind: list[Node] = []
    current: str | None = node_id
    while current is not None and current not in paths:
        behind.append(graph[current])
        current = graph[current].context
    path = list(paths[current]) if current is not None else []
    for node in reversed(behind):
        path.append(node)
        if isinstance(node, Fork):
            paths[node.id] = list(path)
        if node.id != node_id and isinstance(node, Switch | Loop):
            ways: list[list[Node]] = [list(main_line(inner)) for inner in subgraphs(node)]
            longest: list[Node] = max(ways, key=len, default=[])
            path.extend(longest)
    return path


_warned: dict[
    str, dict[str | tuple[str, type[Warning], int], int]
] = {}  # by file: the registry that `warnings` asks for
LOOKED_AT = 64  # characters on each side: merges reach no further than a word


def seams(graph: Graph, meter: Meter) -> Iterator[str]:
    """A sentence per differing seam, sub-graphs included; seams of equal text are named once."""
    seen: set[tuple[str, str]] = set()
    for where, before, after in _seams(graph):
        pair = (before[-LOOKED_AT:], after[:LOOKED_AT])
        if pair not in seen and (found := meter.seam(*pair)):
            yield f"{where} is read as {found}"
        seen.add(pair)


def blank_finding(before: str, choices: Sequence[str]) -> str:
    """What is wrong with the blank between a text and the choices of a call that follows it, "" if nothing is.

    One rule for all tokenizers: a blank in front of a choice belongs to the choice, since tokens are words with the blank
    before them. Two blanks, none between two words, or one that is a token of its own are what models have hardly seen.
    """
    begin = [choice[:1] for choice in choices if choice]
    if before.endswith(" ") and " " in begin:
        return "the text before ends with a blank and the choices begin with one: leave out the one in the text"
    if before.endswith(" ") and before[-2:-1].strip() and any(first.strip() for first in begin):
        return "the text before ends with a blank: leave it out there, and begin each choice with it"
    if before and (before[-1].isalnum() or before[-1] in ".,:;?!") and any(first.isalnum() for first in begin):
        return "no blank stands between the text before and the choices: begin each choice with one"
    return ""


def warn_of_blanks(graph: Graph, call: Gen | Select) -> None:
    """A ChoiceBlankWarning, once for its line, where a call's choices begin with a blank too many or too few."""
    choices = choices_of(call)
    if choices and call.origin is not None and (wrong := blank_finding(_end(graph, call.context), choices)):
        lines = _warned.setdefault(call.origin.file, {})
        warnings.warn_explicit(wrong, ChoiceBlankWarning, call.origin.file, call.origin.line, registry=lines)


def choices_of(call: Gen | Select) -> tuple[str, ...]:
    """The texts among which a call chooses, as far as they are known."""
    if isinstance(call, Select):
        return tuple(choice for choice in call.choices if isinstance(choice, str))
    chooses = call.constraint is not None and call.constraint.kind == "choices"
    return tuple(json.loads(call.constraint.text)) if chooses and call.constraint is not None else ()


def blanks(graph: Graph) -> Iterator[str]:
    """A sentence per call whose choices begin with a blank too many or too few, sub-graphs included."""
    for node in graph:
        if isinstance(node, (Gen, Select)) and (wrong := blank_finding(_end(graph, node.context), choices_of(node))):
            yield f"{node.name or node.id}: {wrong}"
        for inner in subgraphs(node):
            yield from blanks(inner)


def _seams(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """(what stands after the seam, text before, text after)."""
    for node in graph:
        before = _end(graph, node.context)
        if before and isinstance(node, Select):
            for choice in node.choices:
                if isinstance(choice, str):
                    yield f"{node.name or node.id}: choice {choice!r}", before, choice
        elif before and node.branch is not None and (begins := _beginning(node)):
            yield f"the branch that begins with {begins[:LOOKED_AT]!r}", before, begins
        for inner in subgraphs(node):
            yield from _seams(inner)


def _end(graph: Graph, node_id: str | None) -> str:
    """The plain text that a context ends with, "" if it ends otherwise."""
    node = _node(graph, node_id)
    while isinstance(node, Fork):
        node = _node(graph, node.context)
    last = node.pieces[-1] if isinstance(node, Text) else None
    return last.text if isinstance(last, Plain) else ""


def _node(graph: Graph, node_id: str | None) -> Node | None:
    """None at the root, and where a sub-graph continues the graph around it."""
    return graph[node_id] if node_id is not None and node_id in graph else None


def _beginning(node: Node) -> str:
    first = node.pieces[0] if isinstance(node, Text) else None
    return first.text if isinstance(first, Plain) else ""


WORTH_TOKENS = 16  # less than this is not worth a word
EXCERPT = 40


@dataclass(frozen=True, slots=True)
class PrefixFinding:
    """One chance to share. gain_tokens: more tokens shared, by each of `calls` calls (None: by every run or item)."""

    node_id: str
    what: str
    gain_tokens: int
    calls: int | None = None
    origin: Origin | None = None

    def __str__(self) -> str:
        times = f" × {self.calls} calls" if self.calls is not None else " for each"
        where = f" ({self.origin.file}:{self.origin.line})" if self.origin is not None else ""
        return f"{self.what}: +{self.gain_tokens:,} shared tokens{times}{where}"


def lint(graph: Graph, meter: Meter) -> list[PrefixFinding]:
    """Every finding, largest gain first."""
    return sorted(_findings(graph, meter), key=lambda f: -f.gain_tokens * (f.calls or 1))


def _findings(graph: Graph, meter: Meter, item: str = "") -> Iterator[PrefixFinding]:
    """`item`: the input that a map fills, where the graph is its body."""
    yield from _branches(graph, meter)
    yield from _inputs(graph, meter, item)
    for node in graph:
        if isinstance(node, Map):
            yield from _items(node, meter)
        for inner in subgraphs(node):
            yield from _findings(inner, meter, node.item if isinstance(node, Map) else "")


def _branches(graph: Graph, meter: Meter) -> Iterator[PrefixFinding]:
    """Text that is the same at the end of every branch's first prompt, behind text that is not."""
    openings = _openings(graph)
    for fork_id, texts in openings.items():
        fork = graph[fork_id]
        if not isinstance(fork, Fork) or len(texts) != fork.size or fork.size < 2:
            continue
        heads = [_joined(pieces) for pieces in texts.values()]
        shared = _common_end(heads)
        differing = [head[: len(head) - len(shared)] for head in heads]
        if len(set(differing)) < 2 or not all(differing):
            continue
        if (gain := meter.count(shared)) >= WORTH_TOKENS:
            what = f"put “{_excerpt(shared)}” before the fork, ahead of {_name_of(texts[0], differing[0])}"
            yield PrefixFinding(fork_id, what, gain, fork.size, _first_origin(graph, fork_id))


def _common_end(texts: Sequence[str]) -> str:
    """The longest text with which all of them end."""
    reversed_texts = sorted(text[::-1] for text in texts)
    first, last = reversed_texts[0], reversed_texts[-1]
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:length][::-1]


def _openings(graph: Graph) -> dict[str, dict[int, list[Piece]]]:
    """For each fork and branch the pieces up to the branch's first call."""
    openings: dict[str, dict[int, list[Piece]]] = {}
    place: dict[str, tuple[str, int]] = {}  # nodes still in front of their branch's first call
    for node in graph:
        if node.context is None:
            continue
        if node.branch is not None:
            place[node.id] = (node.context, node.branch)
            openings.setdefault(node.context, {}).setdefault(node.branch, [])
        elif node.context in place:
            place[node.id] = place[node.context]
        if node.id not in place:
            continue
        if isinstance(node, Text):
            fork_id, branch = place[node.id]
            openings[fork_id][branch].extend(node.pieces)
        elif isinstance(node, ModelCall | Fork):
            del place[node.id]
    return openings


def _inputs(graph: Graph, meter: Meter, item: str) -> Iterator[PrefixFinding]:
    """Constant text behind an Input: each run with another value computes it again."""
    inputs = {node.id: node.name for node in graph if isinstance(node, Input) and node.id != item}
    for node, name, gain, text in _behind_values(_main_texts(graph), inputs, meter):
        what = f"move {{{name}}} behind “{_excerpt(text)}”"
        yield PrefixFinding(node.id, what, gain, None, node.origin)


def _items(node: Map, meter: Meter) -> Iterator[PrefixFinding]:
    """Constant text behind a map's item: each item computes it again."""
    item = next((n for n in node.body if n.id == node.item), None)
    if not isinstance(item, Input):
        return
    count = None
    match node.items:
        case ListOf(items=items) | Constant(value=list() as items):
            count = len(items)
    for text_node, name, gain, text in _behind_values(_main_texts(node.body), {item.id: item.name}, meter):
        what = f"move {{{name}}} behind “{_excerpt(text)}”"
        yield PrefixFinding(text_node.id, what, gain, count, text_node.origin)


def _main_texts(graph: Graph) -> list[Text]:
    """The text nodes in front of a graph's first call or fork."""
    texts: list[Text] = []
    for node in graph:
        if isinstance(node, ModelCall | Fork) or subgraphs(node):
            break
        if isinstance(node, Text):
            texts.append(node)
    return texts


def _behind_values(texts: Sequence[Text], names: dict[str, str], meter: Meter) -> Iterator[tuple[Node, str, int, str]]:
    """The first value among `names`, and how much constant text stands behind it."""
    behind: list[str] = []
    found: tuple[Node, str] | None = None
    for node in texts:
        for piece in node.pieces:
            if found is None and isinstance(piece, Reference) and piece.node_id in names:
                found = (node, names[piece.node_id])
            elif found is not None and isinstance(piece, Plain):
                behind.append(piece.text)
    gain = sum(meter.count(text) for text in behind)
    if found is not None and gain >= WORTH_TOKENS:
        yield (*found, gain, max(behind, key=len))


def _joined(pieces: Sequence[Piece]) -> str:
    """Pieces as one text; a value is a character of its own that no text holds, followed by what it is."""
    return "".join(p.text if not isinstance(p, Reference) else f"\ufdd0{p.node_id}\ufdd0" for p in pieces)


def _name_of(pieces: Sequence[Piece], differing: str) -> str:
    """What differs between the branches, as the user knows it."""
    first = next((p for p in pieces if isinstance(p, Reference)), None)
    return f"{{{first.node_id}}}" if first is not None else f"“{_excerpt(differing)}”"


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[:EXCERPT].rstrip()}…"


def _first_origin(graph: Graph, fork_id: str) -> Origin | None:
    return next((n.origin for n in graph if n.context == fork_id and n.branch == 0), graph[fork_id].origin)
