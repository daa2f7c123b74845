"""What an export is tried on: values that a model might give (nasty texts, JSON under a schema), and an executor that answers
every call with them at once.

The body and its graph both run here and have to make the same calls. It has no steps, batches, failures or time, so that
a trial takes a millisecond and a race ends the same way in both; what nodes mean (expressions, arms, joins) it asks
`ir/semantics.py`, as the runtime does.
"""

from __future__ import annotations

import inspect
import json
import zlib
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any

from ...errors import GraphError, Origin, SpecError
from ...ir.execution import MISSING, Event, Meta, Meter, Outcome, RunSpec, RunSummary, Usage
from ...ir.graph import Graph
from ...ir.nodes import (
    Break,
    Fork,
    Gen,
    Input,
    Join,
    Json,
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
    ToolNode,
    taking_part,
)
from ...ir.operations import text_of
from ...ir.record import RunRecord
from ...ir.semantics import Count, Ended, Verdict, arm_of, ballot_of, evaluate, same
from ..call_sites import is_library
from ..outputs import FLOAT_REGEX, INT_REGEX

NASTY = (
    "", " ", "plain", " padded ", "two  words", "Two\nlines\n", "\ttab\r\n", 'quo"te', "it's", "back\\slash", "\\n", "{}", "{0}",
    "{x}", "%s", "100%", "%(x)s", "$x", "${x}", "<b>&amp;</b>", "a/b//c", "./..", "a,b;c", "0", "-7", "3.0", "1e3", "true", "False",
    "None", "null", "UPPER", "lower", "Title Case", "ß", "İ", "ﬁ", "é", "e\u0301", "日本語", "🙂", "x" * 70, "[1, 2]", '{"a": 1}', "a=b",
    "- item", "# head", "yes", "no", "END", ".", "?", "abc123", "a" * 3, "\u00a0", "\u2028",
)  # fmt: skip
_INTS = ("0", "7", "-7", "42", "100000", "1")
_FLOATS = ("0", "5", "-3", "0.5", "12.25", "1.10", "100000")
_DEPTH = 6  # levels of a recursive schema
_REACH = 3  # calls from the body to a function whose constants still count


class Samples:
    """Answers of a pretended model for one trial. Equal prompts get equal answers."""

    def __init__(self, trial: int, texts: Sequence[str]) -> None:
        self._trial = trial
        self._texts = tuple(texts)

    def choice(self, options: Sequence[Any], *where: object) -> Any:
        """One of the options; over the trials, each comes up at each place."""
        return options[(self._trial + zlib.crc32(repr(where).encode())) % len(options)]

    def text(self, *where: object) -> str:
        """Any text."""
        found: str = self.choice(self._texts, *where)
        return found

    def generated(self, gen: Gen, prompt: str) -> str:
        """The text of a gen."""
        where = (gen.name, prompt, gen.sample)
        constraint = gen.constraint
        if constraint is None:
            return self.text(*where) if gen.decode == "text" else json.dumps(self.data({}, *where))
        match constraint.kind:
            case "choices":
                return str(self.choice(json.loads(constraint.text), *where))
            case "json_schema":
                schema = json.loads(constraint.text)
                return json.dumps(self.data(schema, *where, root=schema), ensure_ascii=False)
            case "regex" if constraint.text in (INT_REGEX, FLOAT_REGEX):
                return str(self.choice(_INTS if constraint.text == INT_REGEX else _FLOATS, *where))
        return self.text(*where)

    def data(self, schema: Any, *where: object, root: Any = None, depth: int = 0) -> Json:
        """JSON that the schema admits, as far as `type=` makes schemas."""
        if not isinstance(schema, Mapping) or not schema:
            found: Json = self.choice(("text", 1, True, None, [1, "a"], {"a": "b"}), *where)
            return found
        if "$ref" in schema:
            return self.data(_resolved(schema["$ref"], root), *where, root=root, depth=depth)
        for key in ("const", "enum"):
            if key in schema:
                return schema[key] if key == "const" else self.choice(schema[key], *where)  # type: ignore[no-any-return]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                options = schema[key] if depth < _DEPTH else schema[key][-1:]
                return self.data(self.choice(options, *where), *where, root=root, depth=depth + 1)
        return self._of_kind(schema, where, root, depth)

    def _of_kind(self, schema: Mapping[str, Any], where: tuple[object, ...], root: Any, depth: int) -> Json:
        match schema.get("type"):
            case "object":
                known = schema.get("properties", {})
                needed = set(schema.get("required", ()))
                keys = [k for k in known if k in needed or self.choice((True, False), *where, k)]
                return {k: self.data(known[k], *where, k, root=root, depth=depth + 1) for k in keys}
            case "array":
                low = schema.get("minItems", 0)
                size = self.choice((low, low + 1, low + 2), *where) if depth < _DEPTH else low
                size = min(size, schema.get("maxItems", size))
                return [self.data(schema.get("items", {}), *where, i, root=root, depth=depth + 1) for i in range(size)]
            case "string":
                return self.text(*where)[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "x")
            case "integer" | "number":
                return _bounded(self.choice((0, 1, -2, 7, 42), *where), schema)
            case "boolean":
                return bool(self.choice((True, False), *where))
        return None


def texts_for(body: FunctionType) -> tuple[str, ...]:
    """Nasty texts, and the string constants (and their words) of the body and of the user's functions it reaches: what a body
    compares with is what it may get.
    """
    own = [text for code in _reached(body, set(), 0) for text in _constants(code) if len(text) <= 200]
    words = [word for text in own for word in text.split() if word != text]
    return tuple(dict.fromkeys((*NASTY, *own, *words)))


def _reached(function: object, seen: set[CodeType], depth: int) -> Iterator[CodeType]:
    """The code of a function and of those it names or closes over, libraries aside."""
    found = inspect.unwrap(getattr(function, "function", function))  # type: ignore[arg-type]  # programs and tools hold theirs
    if not isinstance(found, FunctionType) or found.__code__ in seen or depth > _REACH or is_library(found.__code__):
        return
    seen.add(found.__code__)
    yield found.__code__
    named = [found.__globals__[name] for name in found.__code__.co_names if name in found.__globals__]
    cells = [cell.cell_contents for cell in found.__closure__ or () if not _is_empty(cell)]
    for each in (*named, *cells):
        yield from _reached(each, seen, depth + 1)


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  asking is the only way to find out
    except ValueError:
        return True
    return False


def _constants(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from (item for item in constant if isinstance(item, str))
        elif isinstance(constant, CodeType):
            yield from _constants(constant)


def _bounded(number: int, schema: Mapping[str, Any]) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", number - 1) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", number + 1) - 1)
    return max(low, min(number, high))  # type: ignore[no-any-return]


def _resolved(reference: str, root: Any) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        root = root[part.replace("~1", "/").replace("~0", "~")] if isinstance(root, Mapping) else {}
    return root


@dataclass(frozen=True, slots=True)
class TrialCall:
    """A call of the model or of a tool. `what`: everything that decides its outcome; `prompt`: the text before it."""

    what: tuple[Any, ...]
    prompt: str
    node: Node


@dataclass(slots=True)
class TrialFrame:
    """The nodes of one graph under execution. `base`: the text that it continues."""

    base: str = ""
    outer: TrialFrame | None = None
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


class TrialExecutor:
    """Implements `Executor`. `run`: the last one opened."""

    name = "rehearsal"

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.run: TrialRun | None = None

    def open(self, spec: RunSpec) -> TrialRun:
        """Begin a run."""
        self.run = TrialRun(self._samples, spec)
        return self.run

    def meter(self) -> Meter:
        """There is no model to measure."""
        raise GraphError("a rehearsal has no model")

    def close(self) -> None:
        """Nothing is held."""


class TrialRun:
    """One run. Implements `Run`; every node is done when `extend` returns."""

    def __init__(self, samples: Samples, spec: RunSpec) -> None:
        self.seed = spec.options.seed or 0
        self.calls: list[TrialCall] = []
        self.root = TrialFrame()
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

    def _do(self, node: Node, frame: TrialFrame) -> Outcome:
        before = frame.base if node.context is None else frame.text_at(node.context)
        outcome = self._outcome(node, frame, before)
        frame.outcomes[node.id] = outcome
        frame.texts[node.id] = before + outcome.text
        if (node.branch is not None and node.context in frame.texts) or node.context in frame.aside:
            frame.aside.add(node.id)
        elif not isinstance(node, (Input, Return)):
            frame.end = frame.texts[node.id]
        return outcome

    def _outcome(self, node: Node, frame: TrialFrame, before: str) -> Outcome:
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
            case ToolNode():
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
        self.calls.append(TrialCall(what, before, gen))
        return Outcome(value=json.loads(text) if gen.decode == "json" else text, text=text, meta=Meta())

    def _selected(self, select: Select, frame: TrialFrame, before: str) -> Outcome:
        texts = [c if isinstance(c, str) else text_of(evaluate(c, frame.find)) for c in select.choices]
        self.calls.append(TrialCall(("select", select.name, tuple(texts), select.method, select.model), before, select))
        chosen = self._samples.choice(texts, select.name, before)
        return Outcome(value=chosen, text=chosen, meta=Meta(finish_reason="selected"))

    def _tool(self, tool: ToolNode, frame: TrialFrame) -> Outcome:
        arguments = json.dumps(evaluate(tool.arguments, frame.find), sort_keys=True, default=repr)
        self.calls.append(TrialCall(("tool", tool.tool, arguments), "", tool))
        schema = result_schema(self.registry.get(tool.tool))
        return Outcome(value=self._samples.data(schema, tool.tool, arguments, root=schema))

    def _join(self, join: Join, frame: TrialFrame) -> Outcome:
        """Branches end in their order, so it is decided as by branches that take equally long."""
        count = Count(join, len(join.values))
        verdict = None
        for branch in taking_part(join, range(len(join.values))):
            value = join.values[branch]
            given = MISSING if value is None else evaluate(value, frame.find)
            count.add(Ended(branch, given, ballot=ballot_of(join, given)))
            verdict = verdict or count.verdict()
        if join.key is not None and count.good:
            best = max(count.good, key=lambda ended: self.registry[join.key or ""](ended.value))
            verdict = Verdict(best.value, (best.branch,))
        if join.mode == "quorum" and verdict is not None and verdict.error is not None and count.good:
            first = count.good[0]  # samples seldom agree, and what comes after the join is to be tried, too
            verdict = Verdict(first.value, (first.branch,))
        if verdict is None:
            raise GraphError(f"the join of {join.fork!r} is not decided")
        if verdict.error is not None:
            raise verdict.error
        text = ""
        if join.mode == "concat":
            start = len(frame.text_at(join.fork))
            text = "".join(frame.text_at(tip)[start:] for tip in taking_part(join, join.tips))
        return Outcome(value=verdict.value, text=text, winners=verdict.winners)

    # sub-graphs --------------------------------------------------------------------------------------------------

    def _inside(self, graph: Graph, outer: TrialFrame, base: str, given: dict[str, Any] | None = None) -> TrialFrame:
        around = TrialFrame(base, outer)
        around.outcomes.update((key, Outcome(value=value)) for key, value in (given or {}).items())
        frame = TrialFrame(base, around)
        for node in graph:
            self._do(node, frame)
        return frame

    def _switch(self, switch: Switch, frame: TrialFrame, before: str) -> Outcome:
        value = evaluate(switch.on, frame.find)
        index = arm_of(switch.arms, value)
        if index is None:
            raise GraphError(f"no arm of {switch.id!r} takes {value!r}")
        arm = switch.arms[index]
        inside = self._inside(arm.graph, frame, before)
        result = None if arm.result is None else evaluate(arm.result, inside.find)
        return Outcome(value=result, text=(inside.end or before)[len(before) :])

    def _loop(self, loop: Loop, frame: TrialFrame, before: str) -> Outcome:
        text, value = before, None
        for _ in range(loop.limit):
            inside = self._inside(loop.body, frame, text)
            value = None if loop.result is None else evaluate(loop.result, inside.find)
            idle = inside.end is None
            text = inside.end or text
            if idle or (loop.until is not None and same(evaluate(loop.until, inside.find), loop.stop_value)):
                break
        return Outcome(value=value, text=text[len(before) :])

    def _map(self, node: Map, frame: TrialFrame, before: str) -> Outcome:
        values = []
        for item in evaluate(node.items, frame.find):
            inside = self._inside(node.body, frame, before, {node.item: item})
            values.append(None if node.result is None else evaluate(node.result, inside.find))
        return Outcome(value=values)


def result_schema(function: Callable[..., Any] | None) -> Any:
    """The JSON schema of what a tool says it returns; {} for anything."""
    tool = getattr(function, "tool", None)
    return schema_of(tool.hints.get("return", Any) if tool is not None else Any)


def schema_of(hint: Any) -> Any:
    """The JSON schema of a type; {} for anything."""
    from ..outputs import output_of

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
