"""Tracing: a body runs on values that do not exist yet, once per answer it may get, and leaves one graph.

A trace is a picture and a prediction. Values always come from a real run, so no trace can make a run wrong. Where the
body asks what only a run can answer, the graph holds a Break with the line.

`trace` is the way in. Its arguments are copied for each run of the body; symbolic ones become Inputs (`SymbolicArguments`). Then
`explore.explored` has the body run again and again (`path.Path` is one run), and the ways are merged into one graph.

A run ends where the body asks what only a model can say. Where a branch of a fork does, the other branches and what comes after
them do not all hang on the answer: they are found by running the body again with made-up answers, several ways, and keeping what
all of them do. The branch itself ends at its Break:

    answer no:   x0 Break end0     x1 Break end1     last
    answer yes:  x0 Break y0 end0  x1 Break y1 end1  last        =>    x0 Break  x1 Break  last

So what a graph holds beyond a Break is less than a run does, never more that hangs on a guess. The graph says that it is
incomplete, its counts are lower bounds, and nothing exports it.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...errors import DslError, Origin, ProgramError, TraceError
from ...ir.graph import Graph
from ...ir.nodes import Break, Constant, Input, Join, Json, Node, Reference, Return
from ...ir.semantics import references_of
from ...ir.verify import findings
from ..annotations import hints_of
from ..bindings import Bindings
from ..call_sites import CallSites, caller_origin
from ..cursor import Cursor
from ..cursor import Line as ContextLine
from ..state import State
from .explore import explored
from .items import Answers, BodyStopped, Chooser, Decision, Item, Line, ModelAnswers, link, loosen
from .path import Path
from .regions import renamed
from .shapes import BOOL, TEXT, NumberShape, Shape, Tags, of_type
from .trace import Trace, driven, outside_of_loops, same_random
from .values import after


class Traceable(Protocol):
    """A program; `program.Program` is one.

    language: "native", or "sglang" for a program in SGLang's style. parameters: names after the state, in order. bound: arguments given by `bind`.
    """

    function: Callable[..., Any]
    name: str
    origin: Origin
    sites: CallSites
    asynchronous: bool
    language: str
    parameters: tuple[str, ...]
    bound: dict[str, Any]

    def call(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the body on a state."""


def went_on(
    stopped: Path, run: Callable[[ModelAnswers], Path], script: Sequence[Decision], inputs: Sequence[Node]
) -> Path:
    """The run that stopped at a Break, with what every answer there leads to.

    run: runs the body again, with guesses. script: the decisions that the run repeats, also those beyond the Break. inputs: the
    nodes of the program's unknown arguments.
    """
    answers: Answers = {(d.on, d.groups): d.taken for d in [*script, *stopped.decisions]}
    runs: list[tuple[Path, ModelAnswers]] = []
    for first, alternating in ((0, False), (1, False), (0, True), (1, True)):
        guesses = ModelAnswers(first, alternating=alternating, answers=answers)
        runs.append((run(guesses), guesses))
    ended = [(p, g) for p, g in runs if p.broken is None]
    for usable in (
        ended,
        [(p, g) for p, g in runs if p.followed],
        runs,
    ):  # what a guess has ended is less, and not wrong
        if usable and _all_vary([guesses for _, guesses in usable]):
            _take(stopped, [path for path, _ in usable], script, inputs)
            break
    if len(stopped.decisions) < len(script):
        stopped.diverge()
    return stopped


def _take(stopped: Path, runs: Sequence[Path], script: Sequence[Decision], inputs: Sequence[Node]) -> None:
    """Let it be what all runs did, if that is a graph and repeats the script."""
    composed = _composed(runs)
    if composed is None:
        return
    nodes, decisions = composed
    asked = [(d.on, d.groups, d.taken) for d in decisions[: len(script)]]
    if asked == [(d.on, d.groups, d.taken) for d in script] and not findings(Graph([*inputs, *nodes])):
        stopped.nodes, stopped.decisions = nodes, decisions


def _all_vary(runs: Sequence[ModelAnswers]) -> bool:
    """Whether nothing that was made up is the same in all runs: it would look as if the body had said it."""
    first = runs[0].made_up
    return all(any(run.made_up.get(question) != number for run in runs[1:]) for question, number in first.items())


def _composed(paths: Sequence[Path]) -> tuple[list[Node], list[Decision]] | None:
    """The nodes and decisions that all runs have."""
    runs = [loosen(path.nodes) for path in paths]
    kept = _common(runs)
    first = paths[0]
    items = [runs[0][n] for n in kept]
    if not any(isinstance(item.node, Break) for item in items):
        return None
    present = {item.node.id for item in items}
    everywhere = [{(d.on, d.groups, d.taken) for d in path.decisions} for path in paths[1:]]
    decisions = [
        replace(d, at=sum(n < d.at for n in kept))
        for d in first.decisions
        if all((d.on, d.groups, d.taken) in others for others in everywhere)
        and (d.on.node_id in present or d.on.node_id not in {node.id for node in first.nodes})
    ]
    return list(link(items)), decisions


def _common(runs: Sequence[Sequence[Item]]) -> list[int]:
    """The numbers of those items of the first run that all others have too, in the same order, that mention no others and stand
    behind no Break of their line.
    """
    places = [{item.node.id: n for n, item in enumerate(run)} for run in runs]
    dropped = {node_id for place in places for node_id in place if any(node_id not in other for other in places)}
    last = [-1] * len(runs)
    kept: list[int] = []
    ended: set[Line] = set()
    for number, item in enumerate(runs[0]):
        where = [place.get(item.node.id, -1) for place in places]
        same = all(
            n > before and (run[n].line, run[n].node) == (item.line, item.node)
            for run, n, before in zip(runs, where, last, strict=True)
        )
        if same and item.line not in ended and dropped.isdisjoint(_needed(item)):
            kept.append(number)
            last = where
            if isinstance(item.node, Break):
                ended.add(item.line)
        else:
            dropped.add(item.node.id)
    return kept


def _needed(item: Item) -> set[str]:
    """The nodes without which an item is nothing."""
    needed = set() if item.line is None else {item.line[0]}
    if isinstance(item.node, Join):
        needed.add(item.node.fork)

    return needed | {reference.node_id for reference in references_of(item.node)}


_LEAVES: dict[type, Shape] = {
    str: TEXT, int: NumberShape(), float: NumberShape(float), bool: BOOL,
}  # fmt: skip
_CHANGEABLE = (list, dict, set, bytearray, deque)
_MISSING = object()


class SymbolicArguments:
    """The arguments of one trace. `inputs`: an Input per symbolic parameter.

    Raises:
        TraceError: a symbolic name that is no parameter, a leaf that cannot stay unknown, an argument that cannot be copied.
    """

    def __init__(
        self, program: Traceable, args: tuple[Any, ...], kwargs: dict[str, Any], symbolic: tuple[str, ...]
    ) -> None:
        self._given = _by_name(program, args, kwargs)
        self._hints = _hints(program)
        self._defaults = _changeable_defaults(program)
        for name in symbolic:
            if name not in program.parameters:
                raise TraceError(
                    f"symbolic={name!r}: {program.name} has no such parameter; it has: "
                    f"{', '.join(program.parameters) or 'none'}",
                    hint="name parameters of the program",
                    origin=caller_origin(),
                )
        self._symbolic = dict.fromkeys(symbolic)
        self.inputs = [self._input(name) for name in self._symbolic]

    def arguments(self, trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh ones, for one run of the body."""
        positional, named = self._given
        values: dict[str, Any] = {**dict(positional), **named}
        fresh = {name: self._fresh(name, value, trace) for name, value in values.items()}
        fresh.update((name, self._fresh(name, _MISSING, trace)) for name in self._symbolic if name not in fresh)
        fresh.update((name, _copied(value, name)) for name, value in self._defaults.items() if name not in fresh)
        order = [fresh.pop(name) for name, _ in positional]
        return tuple(order), fresh

    def _fresh(self, name: str, value: Any, trace: Trace) -> Any:
        if name not in self._symbolic:
            return _copied(value, name)
        if value is _MISSING:
            return trace.member(Reference(name), self._annotated(name))
        return _abstract(value, Reference(name), trace)

    def _input(self, name: str) -> Input:
        values = {**dict(self._given[0]), **self._given[1]}
        if name not in values:
            return Input(id=name, name=name, type_name=_type_name(self._hints.get(name, str)))
        value = values[name]
        if isinstance(value, (list, tuple, dict)):
            return Input(id=name, name=name, type_name=type(value).__name__, structure=_structure(value, name))
        return Input(id=name, name=name, type_name=_leaf(value, name))

    def _annotated(self, name: str) -> Shape:
        shape = of_type(self._hints.get(name, str))
        return NumberShape(float) if isinstance(shape, NumberShape) and shape.convert else shape


def _by_name(
    program: Traceable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """(positional by parameter, the rest by name). Arguments of `*args` have positions for names."""
    names = [*program.parameters[: len(args)], *(f"*{i}" for i in range(len(program.parameters), len(args)))]
    positional = list(zip(names, args, strict=False))
    bound = {name: value for name, value in program.bound.items() if name not in dict(positional)}
    return positional, {**bound, **kwargs}


def _changeable_defaults(program: Traceable) -> dict[str, Any]:
    """Defaults that a body could change for the runs after it, by parameter."""
    parameters = inspect.signature(program.function).parameters
    return {
        name: parameters[name].default
        for name in program.parameters
        if name in parameters
        and isinstance(parameters[name].default, _CHANGEABLE)
        and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    }


def _hints(program: Traceable) -> dict[str, Any]:
    return hints_of(program.function).types  # of each parameter whose annotation is known at run time


def _abstract(value: Any, reference: Reference, trace: Trace) -> Any:
    """The value with every leaf made abstract."""
    match value:
        case list() | tuple():
            return type(value)([_abstract(v, after(reference, "item", i), trace) for i, v in enumerate(value)])
        case dict():
            return {key: _abstract(v, after(reference, "item", key), trace) for key, v in value.items()}
    return trace.member(reference, _LEAVES[type(value)])


def _structure(value: Any, name: str) -> Json:
    match value:
        case list() | tuple():
            return [_structure(item, f"{name}[{i}]") for i, item in enumerate(value)]
        case dict():
            return {str(key): _structure(item, f"{name}[{key!r}]") for key, item in value.items()}
    return _leaf(value, name)


def _leaf(value: Any, name: str) -> str:
    if type(value) not in _LEAVES:
        raise TraceError(
            f"{name} is a {type(value).__name__}, which cannot stay unknown",
            hint="symbolic arguments are texts, numbers and booleans, and lists and dicts of them",
            origin=caller_origin(),
        )
    return type(value).__name__


def _type_name(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) else str(hint)


def _copied(value: Any, name: str) -> Any:
    try:
        return deepcopy(value)
    except Exception as error:
        raise TraceError(
            f"the argument {name} cannot be copied ({type(error).__name__}: {error}), and a trace runs the body several times",
            hint="pass plain data, and get at connections and files inside tools",
            origin=caller_origin(),
        ) from error


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What a trace found. `unsaid`: why the program's result is not in the graph, or ""."""

    graph: Graph
    unsaid: str = ""


def trace(
    program: Traceable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    symbolic: Iterable[str] = (),
    strict: bool = False,
) -> Graph:
    """The graph of every path through the body.

    symbolic: parameters whose leaves (texts, numbers, booleans) stay unknown and become Inputs; the structure of the value
    given holds for the graph. A parameter that is given no value is one unknown leaf of its annotation's type.

    Raises:
        TraceError: `strict` and the body asks what only a run can answer; an argument that cannot be copied or stay
            unknown. Else whatever the body raises before it has touched an unknown value.
    """
    return traced(program, args, kwargs, symbolic=symbolic, strict=strict).graph


def traced(
    program: Traceable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    symbolic: Iterable[str] = (),
    strict: bool = False,
    tags: Tags | None = None,
) -> TraceResult:
    """Like `trace`, with what the graph does not say."""
    following = Trace(program.name, program.sites, strict=strict, language=program.language, tags=tags)
    symbols = SymbolicArguments(program, args, kwargs, tuple(symbolic))
    return outside_of_loops(_Tracer(program, following, symbols).traced, asynchronous=program.asynchronous)


class _Tracer:
    """Runs the body as often as needed. Owner: one trace."""

    def __init__(self, program: Traceable, following: Trace, symbols: SymbolicArguments) -> None:
        self._program = program
        self._trace = following
        self._symbols = symbols
        self._unsaid = ""

    def traced(self) -> TraceResult:
        """The merged graph."""
        with same_random() as restore:

            def walk(script: Sequence[Decision], choose: Chooser, before: Sequence[Node]) -> Path:
                restore()
                path = self._walk(script, choose, before)
                if not path.guessable:
                    return path

                def again(guesses: ModelAnswers) -> Path:
                    restore()
                    return self._walk(script, choose, before, guesses)

                return went_on(path, again, script, self._symbols.inputs)

            try:
                items = explored(walk, loosen)
            finally:
                self._trace.path = None
        nodes: list[Node] = [*self._symbols.inputs, *link(items)]
        kept = [n for n in nodes if not (isinstance(n, Return) and n.value == Constant(None))]
        return TraceResult(Graph(renamed(kept), name=self._program.name).freeze(), self._unsaid)

    def _walk(
        self, script: Sequence[Decision], choose: Chooser, before: Sequence[Node], guesses: ModelAnswers | None = None
    ) -> Path:
        path = Path(self._trace, script, choose, before, asynchronous=self._program.asynchronous, guesses=guesses)
        self._trace.path = path
        for node in self._symbols.inputs:
            path.graph.append(node)
        args, kwargs = self._symbols.arguments(self._trace)
        path.questioned = bool(self._symbols.inputs)
        self._follow(path, Cursor(path, ContextLine(), Bindings()), args, kwargs)
        path.check_replay()
        return path

    def _follow(self, path: Path, cursor: Cursor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._note_return(path, cursor, self._body(State(cursor), args, kwargs, path))
        except BodyStopped:
            return
        except Exception as error:
            if self._trace.strict or not path.questioned:
                _without_tags(error, self._trace)
                raise
            self._note_failure(path, error)

    def _body(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> Any:
        return driven(
            lambda: self._program.call(state, args, kwargs),
            lambda what: path.stop(f"the body {what}"),
            asynchronous=self._program.asynchronous,
        )

    def _note_return(self, path: Path, cursor: Cursor, value: Any) -> None:
        """The Return, also of nothing, so that ways that return and ways that do not can meet."""
        line, origin = cursor.line, self._program.origin
        try:
            expression = path.expression(value, cursor.find, origin)
        except ProgramError as error:
            self._unsaid = error.what
            expression = Constant(None)
        path.append([Return(id="return", context=line.tip, branch=line.branch, origin=origin, value=expression)])

    def _note_failure(self, path: Path, error: Exception) -> None:
        path.followed = False
        what = error.what if isinstance(error, DslError) else f"{type(error).__name__}: {error}"
        try:
            path.stop(f"the body raised, or met what has no value yet: {what}", origin=_raised_at(error, self._program))
        except BodyStopped:
            return


def _without_tags(error: Exception, trace: Trace) -> None:
    """Make its message readable."""
    error.args = tuple(_readable(arg, trace) for arg in error.args)
    for name in ("what", "hint") if isinstance(error, DslError) else ():
        setattr(error, name, trace.readable(getattr(error, name) or ""))


def _readable(value: object, trace: Trace) -> object:
    shown = value if isinstance(value, str) else repr(value)
    readable = trace.readable(shown)
    return value if readable == shown else readable


def _raised_at(error: Exception, program: Traceable) -> Origin:
    """The last line of the body's own file in the traceback."""
    if isinstance(error, DslError) and error.origin is not None:
        return error.origin
    found, frame = program.origin, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == program.origin.file:
            found = replace(program.origin, line=frame.tb_lineno)
        frame = frame.tb_next
    return found
