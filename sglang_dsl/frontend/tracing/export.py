"""Export: a program as a graph that runs without its Python source, or the reason why it cannot be one.

A trace is a picture; an exported graph is a promise. So more is asked of it: every question of the body was followed, two
traces agree, and the graph does what the body does on values made to trip it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...errors import DslError, ExportError, GraphError, Origin
from ...ir.execution import RunSpec, execute
from ...ir.graph import Graph
from ...ir.json_format import check_exportable
from ...ir.nodes import Break, Input, Json
from ...ir.semantics import every_node
from ...ir.specs import RunOptions
from ...ir.verify import verify
from ..annotations import hints_of
from ..session import Session
from .items import BodyStopped, way_out
from .rehearsal import Samples, TrialCall, TrialExecutor, TrialRun, schema_of, texts_for
from .shapes import Tags
from .trace import driven, outside_of_loops, same_random
from .tracer import Traceable, traced

TRIALS = 64
MAX_TRIALS = 400  # up to here, each text that is tried comes up at each place


def export(
    program: Traceable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    symbolic: Iterable[str] = (),
    registry: Collection[str] = (),
    trials: int | None = None,
) -> Graph:
    """The program as a graph. `registry`: tools and Python keys that whoever runs it knows; `trials`: how many sets of values it
    is tried on, by default as many as there are texts worth trying.

    Raises:
        ExportError: what stands in the way, with the line.
    """
    symbols = tuple(symbolic)
    first = traced(program, args, kwargs, symbolic=symbols)
    if first.unsaid:
        raise ExportError(
            f"{program.name} returns what a graph cannot hold: {first.unsaid}",
            hint="return text, numbers, lists and dicts",
            origin=program.origin,
        )
    graph = first.graph
    _check_breaks(graph, program.language)
    check_exportable(graph, registry)
    _check_rules(graph)
    if traced(program, args, kwargs, symbolic=symbols, tags=Tags(13)).graph != graph:
        raise ExportError(
            f"two traces of {program.name} differ: it depends on more than its arguments, or on the length or letters of a text "
            "that holds a value which does not exist yet",
            hint="pass the time, random numbers and counters as arguments; ask values themselves, not texts around them",
            origin=program.origin,
        )
    trying = _Trials(program, args, kwargs, symbols, graph)
    outside_of_loops(lambda: trying.run(trials), asynchronous=program.asynchronous)
    return graph


# --- reasons that a trace knows ---------------------------------------------------------------------------------------


def _check_breaks(graph: Graph, language: str) -> None:
    for node in every_node(graph):
        if isinstance(node, Break):
            raise ExportError(
                f"graph {graph.name!r} breaks off: {node.reason}",
                hint=way_out(node.reason, language),
                origin=node.origin,
            )


def _check_rules(graph: Graph) -> None:
    try:
        verify(graph)
    except GraphError as error:
        raise ExportError(
            f"the graph of a trace breaks a rule: {error.what}", hint=error.hint, origin=error.origin
        ) from error


# --- trying it --------------------------------------------------------------------------------------------------------


class _Trials:
    """Runs the body and the graph on the same values, and compares what they did."""

    def __init__(
        self, program: Traceable, args: tuple[Any, ...], kwargs: dict[str, Any], symbolic: tuple[str, ...],
        graph: Graph,
    ) -> None:  # fmt: skip
        self._program = program
        self._args = args
        self._kwargs = kwargs
        self._symbolic = symbolic
        self._graph = graph
        self._inputs = [node for node in graph if isinstance(node, Input)]
        hints = hints_of(program.function).types
        self._schemas = {node.name: schema_of(hints[node.name]) for node in self._inputs if node.name in hints}

    def run(self, trials: int | None) -> None:
        """Raise ExportError at the first difference."""
        texts = texts_for(self._program.function)  # type: ignore[arg-type]  # checked when it was decorated
        for trial in range(trials if trials is not None else min(max(TRIALS, len(texts)), MAX_TRIALS)):
            samples = Samples(trial, texts)
            with same_random():
                self._compare(samples)

    def _compare(self, samples: Samples) -> None:
        given = {node.name: _sampled(node, self._schemas.get(node.name, {}), samples) for node in self._inputs}
        body, value, error = self._run_body(samples, given)
        try:
            backend = TrialExecutor(samples)
            spec = RunSpec(
                program=self._graph.name,
                options=RunOptions(backend=backend),
                arguments=given,
                registry={} if body is None else body.registry,
            )
            execute(self._graph, backend, spec)
            performed = backend.run
        except DslError as failure:
            if error is None:
                raise self._differs(f"the graph fails ({failure.what}), and the body does not") from failure
            return
        if error is not None:
            raise self._differs(f"the body raises {type(error).__name__}: {error}, and the graph does not") from error
        self._compare_runs(body, performed, value)

    def _compare_runs(self, body: TrialRun | None, graph: TrialRun | None, value: Any) -> None:
        if body is None or graph is None:
            raise self._differs("one of them did not run")
        ours, theirs = sorted(map(_shown, body.calls)), sorted(map(_shown, graph.calls))
        for call in sorted(body.calls, key=_shown):
            if _shown(call) not in theirs:
                raise self._differs(f"the body makes the call {_short(call)}, and the graph does not", call.node.origin)
        for call in graph.calls:
            if _shown(call) not in ours:
                raise self._differs(f"the graph makes the call {_short(call)}, and the body does not", call.node.origin)
        if len(ours) != len(theirs):
            raise self._differs(f"the body makes {len(ours)} calls, the graph {len(theirs)}")
        if (body.root.end or "") != (graph.root.end or ""):
            where, said, instead = _first_difference(body, graph)
            raise self._differs(f"the body's text goes on with {said!r}, the graph's with {instead!r}", where)
        returned = graph.root.outcomes.get("return")
        if value != (None if returned is None else returned.value):
            raise self._differs("the graph returns something else than the body")

    def _run_body(
        self, samples: Samples, given: Mapping[str, Any]
    ) -> tuple[TrialRun | None, Any, BaseException | None]:
        backend = TrialExecutor(samples)
        parameters = self._program.parameters
        args = tuple(given.get(name, value) for name, value in zip(parameters, self._args, strict=False))
        args += self._args[len(parameters) :]
        named = {k: v for k, v in given.items() if k not in parameters[: len(args)]}
        kwargs = {**self._kwargs, **named}
        session: Session[Any] = Session(
            lambda state: self._program.call(state, args, kwargs),
            RunSpec(program=self._program.name, options=RunOptions(backend=backend)),
            self._program.sites,
            self._program.origin,
            asynchronous=self._program.asynchronous,
        )
        asynchronous = self._program.asynchronous
        execute_body = session.aexecute if asynchronous else session.execute
        result = driven(execute_body, self._refuse, asynchronous=asynchronous)
        run = backend.run
        returned = None if run is None else run.root.outcomes.get("return")
        return run, None if returned is None else returned.value, result.error

    def _refuse(self, what: str) -> None:
        raise BodyStopped(what)

    def _differs(self, what: str, origin: Origin | None = None) -> ExportError:
        return ExportError(
            f"{self._program.name} and its graph do different things for some values: {what}",
            hint="ask values themselves (s[x] == ..., s[x].strip()), not texts that hold them",
            origin=origin or self._program.origin,
        )


_PLAIN: dict[str, str] = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


def _sampled(node: Input, schema: Any, samples: Samples) -> Json:
    """A value for an argument. `schema`: of its annotation."""
    if node.structure is not None:
        return _like(node.structure, samples, node.name)
    return samples.data(
        {"type": _PLAIN[node.type_name]} if node.type_name in _PLAIN else schema, node.name, root=schema
    )


def _like(structure: Json, samples: Samples, where: str) -> Json:
    match structure:
        case list():
            return [_like(item, samples, f"{where}[{i}]") for i, item in enumerate(structure)]
        case dict():
            return {key: _like(item, samples, f"{where}.{key}") for key, item in structure.items()}
    return samples.data({"type": _PLAIN[structure]} if structure in _PLAIN else {}, where)


def _shown(call: TrialCall) -> tuple[str, str]:
    return repr(call.what), call.prompt


def _short(call: TrialCall) -> str:
    kind, name, *_ = call.what
    prompt = call.prompt if len(call.prompt) <= 60 else "..." + call.prompt[-57:]
    return f"{kind}({name!r}) after {prompt!r}" if kind != "tool" else f"{name}({call.what[2]})"


def _first_difference(body: TrialRun, graph: TrialRun) -> tuple[Origin | None, str, str]:
    """The line of the body at which the texts part, and how each goes on."""
    ours, theirs = body.root.end or "", graph.root.end or ""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return body.origin_at(at), ours[at : at + 40], theirs[at : at + 40]
