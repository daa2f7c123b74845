"""`explain`: what a graph costs before it runs, and what a reordered prompt would share.

Tokens per call and KV memory are counted by a model's own meter. Values that do not exist yet count by their bound. Of a
Switch the arm with the most tokens counts, a Loop counts once per possible turn, a Map once per item (once where the items
are not known), so all sums are upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from .analysis import PrefixFinding, blanks, calls_of, critical_path, lint, rendered, seams, sibling_groups, waves
from .execution import Meter, Outcome, Segment
from .graph import Graph, main_line
from .nodes import Break, Constant, Gen, ListOf, Loop, Map, ModelCall, Node, Select, subgraphs
from .semantics import every_node

if TYPE_CHECKING:
    from rich.console import RenderableType


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


SHOWN_ROWS = 30
WIDTH = 110


@dataclass(frozen=True, slots=True)
class SiblingCalls:
    """Sibling calls of one name in one line. The first of them computes what the further ones share."""

    calls: tuple[CallCost, ...]
    generated: int | None = None  # tokens really generated by all of them, after a run

    @property
    def times(self) -> int:
        """How many calls there are."""
        return sum(call.times for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What `explain` found. `str()` gives it as text; rich shows it with colours.

    actual: the run's own sums (asked, computed, generated), where outcomes were given. incomplete: where tracing stopped and why;
    what would have come after is not counted.
    """

    program: str
    model: str
    cost: GraphCost
    findings: tuple[PrefixFinding, ...]
    notes: tuple[str, ...]
    rows: tuple[SiblingCalls, ...]
    actual: tuple[int, int, int] | None = None
    incomplete: tuple[str, ...] = ()

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that are asked for and need not be computed."""
        return self.cost.asked_tokens - self.cost.computed_tokens

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows."""
        text = str(self)
        return {"text/html": f"<pre>{escape(text)}</pre>", "text/plain": text}

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(
            width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
        )
        with console.capture() as captured:
            console.print(self, soft_wrap=True)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def __rich__(self) -> RenderableType:
        """For rich's console."""
        from rich.console import Group
        from rich.text import Text

        lines = [Text(line) for line in self._summary()]
        chances = [Text(f"• {finding}") for finding in self.findings]
        notes = [Text(f"! {note}") for note in self.notes]
        missing = [Text(line, style="bold red") for line in self.incomplete]
        head = Text(f"{self.program} on {self.model}", style="bold")
        return Group(head, *missing, self._table(), *lines, *chances, *notes)

    def _table(self) -> RenderableType:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("call", overflow="ellipsis", no_wrap=True)
        for head in ("calls", "prompt", "new", "shared", "forced", "generates at most"):
            table.add_column(head, justify="right")
        for row in self.rows[:SHOWN_ROWS]:
            table.add_row(*_cells(row))
        if len(self.rows) > SHOWN_ROWS:
            table.add_row(f"… {len(self.rows) - SHOWN_ROWS} more", *[""] * 6)
        return table

    def _summary(self) -> list[str]:
        c = self.cost
        least = ">= " if self.incomplete else ""
        saved = f", {1 - c.computed_tokens / c.asked_tokens:.1%} shared" if c.asked_tokens and not least else ""
        lines = [
            f"prompt tokens: {least}{c.asked_tokens:,} asked, {least}{c.computed_tokens:,} to compute{saved}",
            f"KV at peak:    {least}{c.peak_tokens:,} tokens, {least}{_bytes(c.peak_bytes)}",
            f"critical path: {least}{_count(len(c.critical_nodes), 'call')}, at most {least}{_count(c.critical_tokens, 'token')} "
            "in a row",
        ]
        if least:
            lines.insert(0, f"calls:         {least}{sum(call.times for call in c.calls):,}")
        if self.actual is not None:
            asked, computed, generated = self.actual
            lines.append(
                f"the run:       {asked:,} asked ({_error(c.asked_tokens, asked)}), {computed:,} computed "
                f"({_error(c.computed_tokens, computed)}), {generated:,} generated of at most {c.bound_tokens:,}"
            )
        return lines


def explain(graph: Graph, meter: Meter, *, outcomes: Mapping[str, Outcome] | None = None) -> Explanation:
    """Count a graph with a model's meter. With `outcomes` of a run, also what happened and how far off the estimate was.

    Raises:
        RoleError: the model's template refuses a role. ConstraintError: a constraint cannot be used at all.
    """
    counted = cost(graph, meter)
    return Explanation(
        program=graph.name or "program",
        model=meter.model,
        cost=counted,
        findings=tuple(lint(graph, meter)),
        notes=(*_notes(counted, meter), *dict.fromkeys(blanks(graph)), *seams(graph, meter)),
        rows=tuple(_rows(graph, counted, outcomes or {})),
        actual=_actual(outcomes) if outcomes else None,
        incomplete=incomplete(graph),
    )


def incomplete(graph: Graph) -> tuple[str, ...]:
    """Where tracing stopped and why, one sentence for each Break; () for a graph that is whole."""
    found: dict[str, None] = {}
    for node in every_node(graph):
        if isinstance(node, Break):
            where = "" if node.origin is None else f" at {node.origin.file}:{node.origin.line}"
            found[f"incomplete: stopped{where} because {node.reason}"] = None
    return tuple(found)


def _notes(counted: GraphCost, meter: Meter) -> list[str]:
    notes = dict.fromkeys(f"{call.name or call.node_id}: {what}" for call in counted.calls for what in call.findings)
    longest: dict[str, int] = {}
    for call in counted.calls:
        name = call.name or call.node_id
        longest[name] = max(longest.get(name, 0), call.prompt_tokens + call.bound_tokens)
    too_long = [(name, most) for name, most in longest.items() if most > meter.context_tokens]
    return [
        *notes,
        *(f"{n} may reach {most:,} tokens; the context has {meter.context_tokens:,}" for n, most in too_long),
    ]


def _rows(graph: Graph, counted: GraphCost, outcomes: Mapping[str, Outcome]) -> list[SiblingCalls]:
    """Calls of one batch that differ in nothing but their prompt stand in one row."""
    group_of = {call: number for number, group in enumerate(sibling_groups(graph)) for call in group}
    rows: dict[tuple[object, ...], list[CallCost]] = {}
    for call in counted.calls:
        group = group_of.get(call.node_id, call.node_id)
        rows.setdefault((group, call.name, call.forced_tokens, call.bound_tokens), []).append(call)
    return [SiblingCalls(tuple(calls), _generated(calls, outcomes)) for calls in rows.values()]


def _generated(calls: Sequence[CallCost], outcomes: Mapping[str, Outcome]) -> int | None:
    metas = [o.meta for c in calls if (o := outcomes.get(c.node_id)) is not None and o.meta is not None]
    return sum(m.generated_tokens for m in metas) if metas else None


def _actual(outcomes: Mapping[str, Outcome]) -> tuple[int, int, int]:
    metas = [o.meta for o in outcomes.values() if o.meta is not None]
    return (
        sum(m.prompt_tokens for m in metas),
        sum(m.computed_tokens for m in metas),
        sum(m.generated_tokens for m in metas),
    )


def _cells(row: SiblingCalls) -> list[str]:
    first, further = row.calls[0], row.calls[1:]
    bound = f"{first.bound_tokens:,}" if row.generated is None else f"{first.bound_tokens:,} (made {row.generated:,})"
    return [
        first.name or first.node_id,
        f"{row.times:,}",
        _range([call.prompt_tokens for call in row.calls]),
        _then(first.new_tokens, [call.new_tokens for call in further]),
        _then(first.shared_tokens, [call.shared_tokens for call in further]),
        f"{first.forced_tokens:,}",
        bound,
    ]


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _then(first: int, further: Sequence[int]) -> str:
    """The first count, and the range of the others where it is not the same."""
    if not further or (min(further), max(further)) == (first, first):
        return f"{first:,}"
    return f"{first:,}, then {_range(further)}"


def _error(estimate: int, actual: int) -> str:
    """How far off an estimate was; the number itself where it was not even near (a warm cache, an early stop)."""
    if actual and abs(estimate - actual) <= actual:
        return f"estimate {(estimate - actual) / actual:+.1%}"
    return f"estimate {estimate:,}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
