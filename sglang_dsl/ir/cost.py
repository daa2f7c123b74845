"""What a graph costs before it runs: tokens per call, and KV memory, counted by a model's own meter.

Values that do not exist yet count by their bound. Of a Switch the arm with the most tokens counts, a Loop counts once
per possible turn, a Map once per item (once where the items are not known), so all sums are upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .analysis import calls_of, critical_path, waves
from .execution import Meter, Segment
from .graph import Graph, main_line
from .nodes import Constant, Gen, ListOf, Loop, Map, ModelCall, Node, Select, subgraphs
from .rendering import rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """One model call. prompt_tokens = shared_tokens (an earlier call computed or generated them) + new_tokens.

    forced_tokens: of the output, known from the constraint alone. bound_tokens: the most it can generate (a select: the
    tokens of all its choices, which are scored). times: how often the call is made at most.
    """

    node_id: str
    name: str
    prompt_tokens: int
    new_tokens: int
    shared_tokens: int
    forced_tokens: int = 0
    bound_tokens: int = 0
    times: int = 1
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCost:
    """A whole graph. asked: prompt tokens summed over the calls, as an engine without sharing computes them; computed:
    each shared token once. peak_tokens: the most tokens whose KV is needed at one time, generated ones included.
    """

    calls: tuple[CallCost, ...] = ()
    node_tokens: Mapping[str, int] = field(default_factory=dict)
    asked_tokens: int = 0
    computed_tokens: int = 0
    bound_tokens: int = 0
    peak_tokens: int = 0
    peak_bytes: int = 0
    critical_nodes: tuple[str, ...] = ()
    critical_tokens: int = 0


def cost(graph: Graph, meter: Meter) -> GraphCost:
    """Count a graph. Raises what the meter raises (a role the template refuses, a constraint it cannot use)."""
    added = {node_id: sum(map(_size, segments)) for node_id, segments in rendered(graph, meter, {}).items()}
    counted = _Count(meter, added)
    counted.add(graph, before=[], before_tokens=0, times=1)
    peak = _peak_tokens(graph, counted.tokens)
    path = critical_path(graph)
    return GraphCost(
        calls=tuple(counted.calls),
        node_tokens=counted.tokens,
        asked_tokens=sum(c.prompt_tokens * c.times for c in counted.calls),
        computed_tokens=counted.computed,
        bound_tokens=sum(c.bound_tokens * c.times for c in counted.calls),
        peak_tokens=peak,
        peak_bytes=peak * meter.kv_bytes_per_token,
        critical_nodes=tuple(node_id for node_id in path.nodes if calls_of(graph[node_id])),
        critical_tokens=path.weight,
    )


class _Count:
    """Tokens by node and costs by call. Owner: one `cost`.

    added: what the rendered text of each node adds to its context; tokens: the same, with what its sub-graphs add. times: how often at most. ready: nodes whose tokens some call's prompt
    has already paid for, or a call has generated.
    """

    def __init__(self, meter: Meter, added: Mapping[str, int]) -> None:
        self.meter = meter
        self.added = added
        self.tokens: dict[str, int] = {}
        self.times: dict[str, int] = {}
        self.calls: list[CallCost] = []
        self.ready: set[str] = set()
        self.computed = 0

    def add(self, graph: Graph, before: list[Node], before_tokens: int, times: int) -> None:
        """Count a graph that continues the path `before`, which has `before_tokens`."""
        above: dict[str, int] = {}
        for node in graph:
            self.times[node.id] = times
            prompt = before_tokens if node.context is None else above[node.context]
            if inner := subgraphs(node):
                self._add_inner(node, inner, [*before, *graph.path(node.id)[:-1]], prompt, times)
            else:
                self.tokens[node.id] = self.added.get(node.id, 0)
            if isinstance(node, ModelCall):
                self._add_call(node, _upwards(graph, node, before), prompt)
            above[node.id] = prompt + self.tokens[node.id]

    def _add_inner(self, node: Node, inner: tuple[Graph, ...], before: list[Node], prompt: int, times: int) -> None:
        repeats = _repeats(node)
        for graph in inner:
            self.add(graph, before, prompt, times * repeats)
        added = max((sum(self.tokens[n.id] for n in main_line(g)) for g in inner), default=0)
        self.tokens[node.id] = 0 if isinstance(node, Map) else added * repeats
        self.ready.add(node.id)  # its own calls pay for what is inside

    def _add_call(self, node: Gen | Select, path: Iterator[Node], prompt: int) -> None:
        """`path`: what stands before the call, from its context up to the root."""
        new = 0
        for above in path:
            if above.id in self.ready:
                break
            self.ready.add(above.id)
            new += self.tokens[above.id]
            self.computed += self.tokens[above.id] * self.times[above.id]
        self.ready.add(node.id)
        report = self.meter.audit(node.constraint) if isinstance(node, Gen) and node.constraint is not None else None
        bound = node.sampling.most_tokens if isinstance(node, Gen) else _choice_tokens(node, self.meter)
        self.calls.append(
            CallCost(
                node_id=node.id,
                name=node.name or "",
                prompt_tokens=prompt,
                new_tokens=new,
                shared_tokens=prompt - new,
                forced_tokens=report.forced_tokens if report is not None else 0,
                bound_tokens=bound,
                times=self.times[node.id],
                findings=report.findings if report is not None else (),
            )
        )


def _upwards(graph: Graph, node: Node, before: list[Node]) -> Iterator[Node]:
    """The nodes before a node, nearest first; after the graph's own root those it continues."""
    current = node.context
    while current is not None:
        yield graph[current]
        current = graph[current].context
    yield from reversed(before)


def _size(segment: Segment) -> int:
    return len(segment.token_ids) or segment.max_tokens


def _repeats(node: Node) -> int:
    match node:
        case Loop(limit=limit):
            return limit
        case Map(items=ListOf(items=items)):
            return len(items)
        case Map(items=Constant(value=list() as items)):
            return len(items)
    return 1


def _choice_tokens(node: Select, meter: Meter) -> int:
    return sum(meter.count(choice) for choice in node.choices if isinstance(choice, str))


def _peak_tokens(graph: Graph, tokens: Mapping[str, int]) -> int:
    """The most tokens needed at one time, if each wave of calls runs at once: a node's text is kept from the first wave
    that reads it to the last.
    """
    first = {call: number for number, wave in enumerate(waves(graph)) for call in wave}
    last = dict(first)
    for node in reversed(list(graph)):
        if node.context is not None and node.id in first:
            first[node.context] = min(first[node.id], first.get(node.context, first[node.id]))
            last[node.context] = max(last[node.id], last.get(node.context, 0))
    change = [0] * (max(last.values(), default=0) + 2)
    for node_id, wave_number in first.items():
        change[wave_number] += tokens.get(node_id, 0)
        change[last[node_id] + 1] -= tokens.get(node_id, 0)
    held = peak = 0
    for step in change:
        held += step
        peak = max(peak, held)
    return peak
