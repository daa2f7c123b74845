"""An executor without a model: every call is answered at once from samples, and remembered.

It exists to try a graph against its body: both run here, and have to make the same calls. Small on purpose: no batches,
no cache, no failures.
"""

from __future__ import annotations

import json
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ...errors import CancelledError, GraphError, Origin, SpecError
from ...ir.evaluation import arm_of, evaluate, same, text_of
from ...ir.execution import MISSING, Event, Meta, Meter, Outcome, RunSpec, RunSummary, Usage
from ...ir.graph import Graph
from ...ir.nodes import (
    Break,
    Fork,
    Gen,
    Input,
    Join,
    Loop,
    Map,
    Node,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    Tool,
    taking_part,
)
from ...ir.record import RunRecord
from .samples import Samples


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the model or of a tool. `what`: everything that decides its outcome; `prompt`: the text before it."""

    what: tuple[Any, ...]
    prompt: str
    node: Node


@dataclass(slots=True)
class Frame:
    """The nodes of one graph under execution. `base`: the text that it continues."""

    base: str = ""
    outer: Frame | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    end: str | None = None

    def find(self, node_id: str) -> Any:
        """The value of a node in sight."""
        if node_id in self.outcomes:
            return self.outcomes[node_id].value
        if self.outer is None:
            raise GraphError(f"{node_id!r} has no value here")
        return self.outer.find(node_id)

    def text_at(self, node_id: str) -> str:
        """All text up to and including a node in sight."""
        if node_id in self.texts:
            return self.texts[node_id]
        if self.outer is None:
            raise GraphError(f"{node_id!r} has no text here")
        return self.outer.text_at(node_id)


class Rehearsal:
    """Implements `Executor`. `run`: the last one opened."""

    name = "rehearsal"

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.run: Performance | None = None

    def open(self, spec: RunSpec) -> Performance:
        """Begin a run."""
        self.run = Performance(self._samples, spec)
        return self.run

    def meter(self) -> Meter:
        """There is no model to measure."""
        raise GraphError("a rehearsal has no model")

    def close(self) -> None:
        """Nothing is held."""


class Performance:
    """One run. Implements `Run`; every node is done when `extend` returns."""

    def __init__(self, samples: Samples, spec: RunSpec) -> None:
        self.seed = spec.options.seed or 0
        self.calls: list[Call] = []
        self.root = Frame()
        self._samples = samples
        self._spec = spec
        self.registry: dict[str, Callable[..., Any]] = dict(spec.registry)
        self._said: list[tuple[Node, str]] = []
        self._futures: dict[str, Future[Outcome]] = {}

    def extend(self, nodes: Sequence[Node]) -> None:
        """Do them. Raises GraphError where one cannot be done."""
        for node in nodes:
            outcome = self._do(node, self.root)
            self.value(node.id).set_result(outcome)
            self._said.append((node, self.root.texts[node.id]))

    def origin_at(self, offset: int) -> Origin | None:
        """The line that appended the character at `offset` of the program's own text."""
        for node, text in self._said:
            if len(text) > offset and self.root.end is not None and self.root.end.startswith(text):
                return node.origin
        return None

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """Join keys are called; tools and validators are not."""
        self.registry[key] = function

    def await_on(self, loop: AbstractEventLoop) -> None:
        """Nothing is awaited."""

    def value(self, node_id: str) -> Future[Outcome]:
        """The node's future."""
        return self._futures.setdefault(node_id, Future())

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        """Everything is done already."""

    def seal(self) -> Future[RunSummary]:
        """The end."""
        ended: Future[RunSummary] = Future()
        ended.set_result(RunSummary(usage=Usage(calls=len(self.calls)), seed=self.seed, text=self.root.end or ""))
        return ended

    def record(self) -> RunRecord:
        """None is kept."""
        raise GraphError("a rehearsal keeps no record")

    def events(self) -> Iterator[Event]:
        """None."""
        return iter(())

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        """Nothing will be told."""
        return lambda: None

    # doing -------------------------------------------------------------------------------------------------------

    def _do(self, node: Node, frame: Frame) -> Outcome:
        before = frame.base if node.context is None else frame.text_at(node.context)
        outcome = self._outcome(node, frame, before)
        frame.outcomes[node.id] = outcome
        frame.texts[node.id] = before + outcome.text
        if (node.branch is not None and node.context in frame.texts) or node.context in frame.aside:
            frame.aside.add(node.id)
        elif not isinstance(node, (Input, Return)):
            frame.end = frame.texts[node.id]
        return outcome

    def _outcome(self, node: Node, frame: Frame, before: str) -> Outcome:
        match node:
            case Text(pieces=pieces):
                said = (text_of(evaluate(p, frame.find)) if isinstance(p, Reference) else p.text for p in pieces)
                return Outcome(text="".join(said))
            case RoleBegin(role=role):
                return Outcome(text=f"<{role}>")
            case RoleEnd(role=role):
                return Outcome(text=f"</{role}>")
            case Gen():
                return self._generated(node, before)
            case Select():
                return self._selected(node, frame, before)
            case Tool():
                return self._tool(node, frame)
            case Join():
                return self._join(node, frame)
            case Switch():
                return self._switch(node, frame, before)
            case Loop():
                return self._loop(node, frame, before)
            case Map():
                return self._map(node, frame, before)
            case Input():
                return Outcome(value=frame.outer.find(node.id) if frame.outer else self._spec.arguments[node.name])
            case Return(value=value):
                return Outcome(value=evaluate(value, frame.find))
            case Break(reason=reason):
                raise GraphError(f"a break cannot be executed: {reason}")
            case Fork():
                return Outcome()
        raise GraphError(f"a {node.kind} cannot be rehearsed")

    def _generated(self, gen: Gen, before: str) -> Outcome:
        text = self._samples.generated(gen, before)
        what = ("gen", gen.name, gen.sampling, gen.constraint, gen.decode, gen.model, gen.retries, gen.sample)
        self.calls.append(Call(what, before, gen))
        return Outcome(value=json.loads(text) if gen.decode == "json" else text, text=text, meta=Meta())

    def _selected(self, select: Select, frame: Frame, before: str) -> Outcome:
        texts = [c if isinstance(c, str) else text_of(evaluate(c, frame.find)) for c in select.choices]
        self.calls.append(Call(("select", select.name, tuple(texts), select.method, select.model), before, select))
        chosen = self._samples.choice(texts, select.name, before)
        return Outcome(value=chosen, text=chosen, meta=Meta(finish_reason="selected"))

    def _tool(self, tool: Tool, frame: Frame) -> Outcome:
        arguments = json.dumps(evaluate(tool.arguments, frame.find), sort_keys=True, default=repr)
        self.calls.append(Call(("tool", tool.tool, arguments), "", tool))
        schema = result_schema(self.registry.get(tool.tool))
        return Outcome(value=self._samples.data(schema, tool.tool, arguments, root=schema))

    def _join(self, join: Join, frame: Frame) -> Outcome:
        values = [MISSING if v is None else evaluate(v, frame.find) for v in join.values]
        if join.mode == "concat":
            start = len(frame.text_at(join.fork))
            text = "".join(frame.text_at(tip)[start:] for tip in taking_part(join, join.tips))
            return Outcome(value=taking_part(join, values), text=text)
        winners = self._winners(join, values)
        if join.mode == "first":
            return Outcome(value=[values[i] for i in winners], winners=tuple(winners))
        if join.mode in ("quorum", "vote", "best"):
            return Outcome(value=values[winners[0]], winners=tuple(winners))
        if join.mode == "settle":
            left_out = {i: CancelledError(f"branch {i} takes no part in the join") for i in join.skipped}
            return Outcome(value=[left_out.get(i, value) for i, value in enumerate(values)], winners=tuple(winners))
        return Outcome(value=taking_part(join, values), winners=tuple(winners))

    def _winners(self, join: Join, values: list[Any]) -> list[int]:
        good = [i for i, value in enumerate(values) if value is not MISSING and i not in join.skipped]
        match join.mode:
            case "first":
                return good[: join.k]
            case "best":
                key = self.registry[join.key or ""]
                return [max(good, key=lambda i: key(values[i]))]
            case "vote" | "quorum":
                groups: dict[str, list[int]] = {}
                for i in good:
                    groups.setdefault(json.dumps(values[i], sort_keys=True, default=repr), []).append(i)
                if join.mode == "vote":
                    return max(groups.values(), key=lambda group: (len(group), -group[0]))
                return next((g[: join.k] for g in groups.values() if len(g) >= (join.k or 1)), good[:1])
        return good

    # sub-graphs --------------------------------------------------------------------------------------------------

    def _inside(self, graph: Graph, outer: Frame, base: str, given: dict[str, Any] | None = None) -> Frame:
        around = Frame(base, outer)
        around.outcomes.update((key, Outcome(value=value)) for key, value in (given or {}).items())
        frame = Frame(base, around)
        for node in graph:
            self._do(node, frame)
        return frame

    def _switch(self, switch: Switch, frame: Frame, before: str) -> Outcome:
        value = evaluate(switch.on, frame.find)
        index = arm_of(switch.arms, value)
        if index is None:
            raise GraphError(f"no arm of {switch.id!r} takes {value!r}")
        arm = switch.arms[index]
        inside = self._inside(arm.graph, frame, before)
        result = None if arm.result is None else evaluate(arm.result, inside.find)
        return Outcome(value=result, text=(inside.end or before)[len(before) :])

    def _loop(self, loop: Loop, frame: Frame, before: str) -> Outcome:
        text, value = before, None
        for _ in range(loop.limit):
            inside = self._inside(loop.body, frame, text)
            value = None if loop.result is None else evaluate(loop.result, inside.find)
            idle = inside.end is None
            text = inside.end or text
            if idle or (loop.until is not None and same(evaluate(loop.until, inside.find), loop.stop_value)):
                break
        return Outcome(value=value, text=text[len(before) :])

    def _map(self, node: Map, frame: Frame, before: str) -> Outcome:
        values = []
        for item in evaluate(node.items, frame.find):
            inside = self._inside(node.body, frame, before, {node.item: item})
            values.append(None if node.result is None else evaluate(node.result, inside.find))
        return Outcome(value=values)


def result_schema(function: Callable[..., Any] | None) -> Any:
    """The JSON schema of what a tool says it returns; {} for anything."""
    from ..outputs import output_of

    tool = getattr(function, "tool", None)
    hint = tool.hints.get("return", Any) if tool is not None else Any
    plain = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if hint in (Any, dict, list):
        return {}
    if isinstance(hint, type) and hint in plain:
        return {"type": plain[hint]}
    try:
        constraint = output_of(hint).constraint
    except SpecError:  # an object that only Python knows
        return {}
    if constraint is None or constraint.kind not in ("json_schema", "choices"):
        return {}
    found = json.loads(constraint.text)
    return found if constraint.kind == "json_schema" else {"enum": found}
