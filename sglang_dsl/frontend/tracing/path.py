"""One run of a body without a model: a Recorder that keeps the nodes, the decisions, and the Break it ended at.

What the body appends becomes nodes, with references where its texts and data hold values that do not exist yet. What it asks
of such a value is a decision where the value is one of a few; else the run ends at a Break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import Origin, TraceError
from ...ir.execution import Outcome
from ...ir.graph import Graph
from ...ir.nodes import (
    NODE_CLASSES,
    Break,
    Concat,
    Constant,
    DictOf,
    Expression,
    Gen,
    Node,
    Objects,
    Piece,
    Plain,
    Reference,
    Select,
    Text,
)
from ..bindings import Find, LocalBinding, NodeBinding, SpanBinding
from ..call_sites import CallSite, CallSites, user_origin
from ..cursor import Body, Cursor
from ..data import Writer, json_constant, object_constant
from ..expressions import Handle
from ..greenlets import on_some_stack
from ..session import settled
from .control_flow import follow_loop, follow_map, follow_switch, value_of
from .items import BodyStopped, Chooser, Decision, Group, Line, ModelAnswers, way_out
from .shapes import whole
from .values import Unknown, exact, is_abstract

if TYPE_CHECKING:
    from ..tools import Tool
    from .trace import Trace


class Path:
    """A Recorder. Owner: one run of the body; frozen in all but name once the body has ended.

    script: decisions to take again, in order. choose: takes the ones after. before: nodes that the script's run had
    appended when it came to the last of them: the body has to append the same again. guesses: answers to what only a model can
    say, for a run that shows what comes beyond a Break (`tracer.py`): such a run has Breaks in it and goes on.
    """

    tracing = True
    graph: Graph
    sites: CallSites
    asynchronous: bool
    max_depth: int
    sampling: Mapping[str, Any]

    def __init__(
        self, trace: Trace, script: Sequence[Decision], choose: Chooser, before: Sequence[Node], *, asynchronous: bool,
        guesses: ModelAnswers | None = None,
    ) -> None:  # fmt: skip
        self.trace = trace
        self.sites = trace.sites
        self.asynchronous = asynchronous
        self.max_depth, self.sampling = settled(None).max_depth, settled(None).sampling
        self.graph = Graph(name=trace.name)
        self.nodes: list[Node] = []
        self.decisions: list[Decision] = []
        self.broken: Break | None = None
        self.guessable = False  # whether the Break it ended at is a question that can be answered by guesses
        self.followed = True  # whether what ended it is no consequence of a guess
        self.questioned = False  # whether the body has had an abstract value in its hands
        self._guesses = guesses
        self._script = script
        self._choose = choose
        self._before = before
        self._diverged = False
        self._lines: dict[str, Line] = {}  # of the nodes so far, as far as somebody has asked
        self._broken_lines: dict[Line, Break] = {}  # those that a run with guesses has gone beyond
        self._compared = 0  # nodes that were found to be those of the run before
        self._left: dict[Reference, Group] = {}
        self._functions: dict[str, Callable[..., Any]] = {}

    # Recorder ----------------------------------------------------------------------------------------------------

    def append(self, nodes: Sequence[Node]) -> None:
        """Keep the nodes, if no abstract value hides in an option."""
        self._go_on()
        for node in nodes:
            self._scan_options(node)
            self.graph.append(node)
            self.nodes.append(node)

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Nothing is called; what the function says of its result is read."""
        known = self._functions.setdefault(key, function)
        number = 1
        while known != function:
            number += 1
            known = self._functions.setdefault(f"{key}#{number}", function)
        return key if number == 1 else f"{key}#{number}"

    def function(self, key: str) -> Callable[..., Any] | None:
        """What is registered as `key`."""
        return self._functions.get(key)

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """Text between the tags, and references for the tags."""
        found = self.trace.tags.find(exact(text))
        if found.damage:
            self.stop(f"the text holds {found.damage}")
        return tuple(self.trace.reference(p) if isinstance(p, int) else Plain(p) for p in found.parts)

    def expression(self, value: Any, find: Find, origin: Origin) -> Expression:
        """Data; abstract values in it are references, and texts around them are Concats."""
        return TracedWriter(self, find, origin, json_constant).write(value)

    def arguments(
        self, tool: Tool[..., Any], given: Mapping[str, Any], find: Find, origin: Origin
    ) -> tuple[DictOf, Objects | None]:
        """The same; what is known already has to be what the tool takes, as in a run."""
        writer = TracedWriter(self, find, origin, object_constant)
        pairs: list[tuple[str, Expression]] = []
        for name, value in given.items():
            expression = writer.write(value)
            if isinstance(expression, Constant):
                tool.given(name, value, origin)
                if expression.to_json is not None:
                    expression = Constant(expression.value, tool.conversion(name).to_json)
            pairs.append((name, expression))
        return DictOf(tuple(pairs)), None

    def read(self, bound: NodeBinding, timeout_s: float | None = None) -> Any:
        """A stand-in."""
        if isinstance(bound, LocalBinding):
            value = bound.resolve(self.outcome)
            return self.trace.compound(value) if isinstance(bound, SpanBinding) else value
        self._go_on()
        self.questioned = True
        return value_of(self, bound)

    async def aread(self, bound: NodeBinding) -> Any:
        """A stand-in."""
        return self.read(bound)

    def future(self, node_id: str) -> None:
        """Nothing will ever be."""

    def is_finished(self, node_id: str) -> bool:
        """Nothing is."""
        return False

    def outcome(self, node_id: str) -> Outcome:
        """What can be said of it."""
        return Unfinished(self, self.graph[node_id])

    def switch(
        self, cursor: Cursor, bound: NodeBinding, arms: Mapping[Any, Body], default: Body | None, site: CallSite
    ) -> Any:
        """Every arm in a run of its own: what the arms append becomes a Switch like that of an `if`."""
        self.questioned = True
        return follow_switch(self, cursor, bound, arms, default, site)

    def loop(
        self, cursor: Cursor, body: Body, until: Handle[Any] | str | None, stop_value: Any, limit: int, site: CallSite
    ) -> Any:
        """A Loop with its body as a sub-graph."""
        self.questioned = True
        return follow_loop(self, cursor, body, until, stop_value, limit, site)

    def map(self, cursor: Cursor, items: Any, body: Callable[[Cursor, Any], Any], site: CallSite) -> Any:
        """Unknown items are a Map with its body as a sub-graph; known ones fork."""
        return follow_map(self, cursor, items, body, site) if is_abstract(items) else None

    def run_bodies(
        self, bodies: Sequence[Callable[[], Any]], concurrency: int | None
    ) -> list[tuple[Any, Exception | None]]:
        """All of them, one after the other, also after one that could not be followed to its end; then this run ends there."""
        found: list[tuple[Any, Exception | None]] = []
        broken: Break | None = None
        for body in bodies:
            try:
                found.append(on_some_stack(partial(_ended, body)))
            except BodyStopped:
                if self._diverged or self.broken is None or self.trace.strict:
                    raise
                broken, self.broken = broken or self.broken, None
        if broken is not None:
            self.broken = broken
            raise BodyStopped
        return found

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """What a run had done by then only the run can say."""
        self.stop("the body cancelled something, and what had finished by then differs from run to run")

    # questions ---------------------------------------------------------------------------------------------------

    def decide(self, on: Reference, groups: Sequence[Group]) -> int:
        """Which of the groups this run goes on with. Fewer than two are no question."""
        self._go_on()
        if len(groups) == 1:
            return 0
        asked = Decision(on, tuple(groups), 0, len(self.nodes), user_origin(), on in self._left)
        number = len(self.decisions)
        if self._guesses is not None:
            known = self._guesses.answers
            taken = known.get((on, asked.groups))
            if taken is None:
                taken = known[on, asked.groups] = self._choose(asked)
            asked = asked.instead(taken)
        elif number < len(self._script):
            again = self._script[number]
            fresh = slice(self._compared, again.at)
            if not again.same_question(asked) or self.nodes[fresh] != list(self._before[fresh]):
                self.diverge()
                raise BodyStopped
            self._compared = again.at
            asked = asked.instead(again.taken)
        else:
            asked = asked.instead(self._choose(asked))
        self.decisions.append(asked)
        self._left[on] = asked.values
        return asked.taken

    def check_replay(self) -> None:
        """Call it when the body has ended: it has to have come to every decision of the script. Those of a run that stopped at a
        question that can be guessed may come beyond it.
        """
        if len(self.decisions) < len(self._script) and not self.guessable and self._guesses is None:
            self.diverge()

    def diverge(self) -> None:
        """The body did something else than before: what follows the last decision of the script is a Break."""
        last = self._script[-1]
        reason = "the body did something else when it was run again (a clock, a counter, a random number?)"
        if self.trace.strict:
            raise TraceError(reason, hint="pass what changes as an argument", origin=last.origin)
        before = list(self._before[: last.at])
        context = before[-1].id if before else None
        self._diverged = True
        node_id = _free_id("break", before)
        self.broken = Break(id=node_id, context=context, origin=last.origin, reason=reason, on=last.on)
        self.nodes = [*before, self.broken]
        self.decisions = list(self._script)

    def inside(self, script: Sequence[Decision], choose: Chooser, before: Sequence[Node]) -> Path:
        """A run of a body inside this one: it sees the nodes and decisions so far, and adds to neither."""
        path = Path(self.trace, script, choose, before, asynchronous=self.asynchronous)
        for node in self.graph:
            path.graph.append(node)
        path._left = dict(self._left)
        path._functions = self._functions
        path.questioned = True
        return path

    def left(self, on: Reference) -> Group:
        """The values of `on` that earlier decisions of this run leave, None if there were none."""
        return self._left.get(on)

    def stop(self, reason: str, on: Reference | None = None, origin: Origin | None = None) -> NoReturn:
        """End this run with a Break. Raises TraceError in a strict trace."""
        self._go_on()
        where = origin or user_origin()
        reason = self.trace.readable(reason)
        if self.trace.strict:
            self.broken = Break(id="break", reason=reason)
            hint = f"{way_out(reason, self.trace.language)}; or trace without strict=True to see the rest"
            raise TraceError(reason, hint=hint, origin=where)
        known = self._broken_before(on)
        self.broken = known or self._break(reason, on, where)
        raise BodyStopped

    def guess(self, reason: str, on: Reference, answers: Sequence[Any], question: object) -> Any:
        """An answer to what only a model can say: the branch that was asked for ends at a Break, and the run goes on. Ends the run where
        it is not one that guesses, there is no answer, or all that follows hangs on it.

        question: what is the same where the same is asked again.
        """
        self._go_on()
        if self.trace.strict or self.trace.path is not self or not answers or self._line_of(on) is None:
            self.stop(reason, on)
        if self._guesses is None:
            self.guessable = True
            self.stop(reason, on)
        where = user_origin()
        finite = all(isinstance(answer, bool) for answer in answers)
        place, line = (where.file, where.line, where.column), ("line", self._line_of(on))
        taken = self._guesses.taken(question, place, line, len(answers), finite=finite)
        if taken is None:
            self.followed = False
            self.stop(reason, on)
        if self._broken_before(on) is None:
            self._broken_lines[self._line_of(on)] = self._break(self.trace.readable(reason), on, where)
        return answers[taken]

    def _break(self, reason: str, on: Reference | None, where: Origin) -> Break:
        """A Break at the end of the line whose value was asked for."""
        line = None if on is None else self._line_of(on)
        on_line = (node.id for node in reversed(self.nodes) if line is None or self._lines[node.id] == line)
        context = next(on_line, None)
        _, bracket, branches = ("" if line is None or context is None else context).partition("[")
        node_id = _free_id(f"break{bracket}{branches}", self.graph)
        found = Break(id=node_id, context=context, origin=where, reason=reason, on=on)
        self.graph.append(found)
        self.nodes.append(found)
        return found

    def _broken_before(self, on: Reference | None) -> Break | None:
        """The Break that the line of a value, or of the last node, has already."""
        if not self._broken_lines:
            return None
        return self._broken_lines.get(self._line_of(on or Reference(self.nodes[-1].id)))

    def _line_of(self, on: Reference) -> Line:
        """The branch that a value stands on, or that the body is at when it asks for one from outside; None: the program's own line."""
        for node in self.nodes[len(self._lines) :]:
            begun = None if node.branch is None or node.context is None else (node.context, node.branch)
            self._lines[node.id] = begun or self._lines.get(node.context or "")
        last = self.nodes[-1].id if self.nodes else ""
        return self._lines.get(on.node_id) or self._lines.get(last)

    def _go_on(self) -> None:
        if self.broken is not None:
            raise BodyStopped
        if self.trace.path is not self and self.trace.path is not None:
            self.trace.path.stop("the body of a loop or map used a state from around it")

    # borders -----------------------------------------------------------------------------------------------------

    def _whole(self, value: Unknown) -> Expression:
        if value._number != value._reference:
            return value._number
        if not whole(value._shape):
            self.stop("all of a value was handed on whose JSON is not what Python makes of it", value._reference)
        return value._reference

    def _text(self, value: str) -> Expression:
        pieces = self.pieces(value)
        parts: list[Expression] = [p if isinstance(p, Reference) else Constant(p.text) for p in pieces]
        if not parts:
            return Constant("")
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _key(self, key: str) -> str:
        if is_abstract(key) or any(isinstance(p, int) for p in self.trace.tags.find(exact(key)).parts):
            self.stop("a key of a dict depends on a value that does not exist yet")
        return exact(key)

    def _scan_options(self, node: Node) -> None:
        for name in _option_fields(node.kind):
            value = getattr(node, name)
            if value and not self.trace.is_clean(value):
                self.stop(f"{name!r} of this {node.kind} depends on a value that does not exist yet")


class TracedWriter(Writer):
    """Writes a value that may hold abstract ones, and texts made of them."""

    def __init__(self, path: Path, find: Find, origin: Origin, constant: Callable[[Any, Origin], Constant]) -> None:
        super().__init__(find, origin, constant)
        self._path = path

    def plain(self, value: Any) -> bool:
        """Any text may have an abstract value in it."""
        return False

    def leaf(self, value: Any) -> Expression | None:
        """Also of abstract values."""
        if type(value) is Unknown:
            return self._path._whole(value)
        if isinstance(value, str):
            found = self._path._text(value)
            return None if isinstance(found, Constant) else found
        return super().leaf(value)

    def key(self, key: str) -> str:
        """One that depends on no value."""
        return self._path._key(key)


class Unfinished(Outcome):
    """The outcome of a node in a trace: its text where the node says it, and nothing else."""

    __slots__ = ("_node", "_path")
    _node: Node
    _path: Path

    def __init__(self, path: Path, node: Node) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_node", node)

    def __getattribute__(self, name: str) -> Any:
        if name in ("text", "value", "meta", "winners"):
            path, node = object.__getattribute__(self, "_path"), object.__getattribute__(self, "_node")
            return _text_of(path, node) if name == "text" else path.stop(f"the {name} of {node.id!r} was asked for")
        if name in _DEFAULTS:
            return _DEFAULTS[name]  # what an outcome is not said to be
        return object.__getattribute__(self, name)


_DEFAULTS = {f.name: f.default for f in fields(Outcome)}


def _text_of(path: Path, node: Node) -> Any:
    """Tags for a call's text; the text of a Text."""
    path.questioned = True
    if isinstance(node, Text):
        parts = (path.trace.tag(p) if isinstance(p, Reference) else p.text for p in node.pieces)
        return path.trace.compound("".join(parts))
    if isinstance(node, Select) or (isinstance(node, Gen) and node.decode == "text"):
        return value_of(path, NodeBinding(node.id))
    return path.stop(f"the text of a {node.kind} is known to the model's template, or to the run, only")


def _ended(body: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a branch's body gives, called in a context of its own."""
    try:
        return copy_context().run(body), None
    except Exception as error:  # noqa: BLE001  a body's error is its result; the map raises it
        return None, error


def _free_id(label: str, taken: Iterable[Node]) -> str:
    """The label, numbered if a node has it already."""
    ids, number, free = {node.id for node in taken}, 1, label
    while free in ids:
        number += 1
        free = f"{label}#{number}"
    return free


_MENTIONS = frozenset({"pieces", "choices", "values", "arguments", "value", "items", "result", "on", "origin", "id"})
_OURS = frozenset(
    {"objects", "context", "branch", "control", "scope", "fork", "tips", "body"}
)  # made here, or scanned already


@cache
def _option_fields(kind: str) -> tuple[str, ...]:
    """The fields of a kind of node that hold what the user gave, and no expressions."""
    return tuple(f.name for f in fields(NODE_CLASSES[kind]) if f.name not in _MENTIONS | _OURS)
