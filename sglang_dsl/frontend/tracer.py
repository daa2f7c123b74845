"""Tracing: a body runs on values that do not exist yet, once per answer it may get, and leaves one graph.

A trace is a picture and a prediction. Values always come from a real run, so no trace can make a run wrong. Where the
body asks what only a run can answer, the graph holds a Break with the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DslError, Origin, ProgramError
from ..ir.graph import Graph
from ..ir.nodes import Constant, Node, Return
from .bindings import Bindings
from .drafting import Cursor, Line
from .state import State
from .traceable import Traceable
from .tracing.beyond import went_on
from .tracing.decisions import Chooser, Decision, Stop
from .tracing.driving import driven, outside_of_loops
from .tracing.explore import explored
from .tracing.follower import Trace
from .tracing.guard import same_random
from .tracing.guesses import Guesses
from .tracing.inputs import Symbols
from .tracing.items import link, loosen
from .tracing.naming import renamed
from .tracing.path import Path
from .tracing.tags import Tags


@dataclass(frozen=True, slots=True)
class Traced:
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
) -> Traced:
    """Like `trace`, with what the graph does not say."""
    following = Trace(program.name, program.sites, strict=strict, language=program.language, tags=tags)
    symbols = Symbols(program, args, kwargs, tuple(symbolic))
    return outside_of_loops(_Tracer(program, following, symbols).traced, asynchronous=program.asynchronous)


class _Tracer:
    """Runs the body as often as needed. Owner: one trace."""

    def __init__(self, program: Traceable, following: Trace, symbols: Symbols) -> None:
        self._program = program
        self._trace = following
        self._symbols = symbols
        self._unsaid = ""

    def traced(self) -> Traced:
        """The merged graph."""
        with same_random() as restore:

            def walk(script: Sequence[Decision], choose: Chooser, before: Sequence[Node]) -> Path:
                restore()
                path = self._walk(script, choose, before)
                if not path.guessable:
                    return path

                def again(guesses: Guesses) -> Path:
                    restore()
                    return self._walk(script, choose, before, guesses)

                return went_on(path, again, script, self._symbols.inputs)

            try:
                items = explored(walk, loosen)
            finally:
                self._trace.path = None
        nodes: list[Node] = [*self._symbols.inputs, *link(items)]
        kept = [n for n in nodes if not (isinstance(n, Return) and n.value == Constant(None))]
        return Traced(Graph(renamed(kept), name=self._program.name).freeze(), self._unsaid)

    def _walk(
        self, script: Sequence[Decision], choose: Chooser, before: Sequence[Node], guesses: Guesses | None = None
    ) -> Path:
        path = Path(self._trace, script, choose, before, asynchronous=self._program.asynchronous, guesses=guesses)
        self._trace.path = path
        for node in self._symbols.inputs:
            path.graph.append(node)
        args, kwargs = self._symbols.arguments(self._trace)
        path.questioned = bool(self._symbols.inputs)
        self._follow(path, State(Cursor(path, Line(), Bindings(), "")), args, kwargs)
        path.check_replay()
        return path

    def _follow(self, path: Path, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._note_return(path, state, self._body(state, args, kwargs, path))
        except Stop:
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

    def _note_return(self, path: Path, state: State, value: Any) -> None:
        """The Return, also of nothing, so that ways that return and ways that do not can meet."""
        line, origin = state._cursor.line, self._program.origin
        try:
            expression = path.expression(value, state._find, origin)
        except ProgramError as error:
            self._unsaid = error.what
            expression = Constant(None)
        path.append([Return(id="return", context=line.tip, branch=line.branch, origin=origin, value=expression)])

    def _note_failure(self, path: Path, error: Exception) -> None:
        path.followed = False
        what = error.what if isinstance(error, DslError) else f"{type(error).__name__}: {error}"
        try:
            path.stop(f"the body raised, or met what has no value yet: {what}", origin=_raised_at(error, self._program))
        except Stop:
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
