"""What the tests of tracing share: graphs as short lines, and programs run beside their graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sglang_dsl.frontend.tracing.rehearsal import NASTY, Samples, TrialExecutor, TrialRun
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Break, Loop, Map, Node, Switch
from sglang_dsl.ir.specs import RunOptions

# other texts than the export check tries, so that it cannot pass by its own list
OTHERS = (
    *NASTY,
    "yes,no",
    "Yes",
    "error: err",
    "12",
    "0x1f",
    "teal",
    "a;b",
    "  ",
    "{v}",
    "ŉ",
    "\u200b",
    "<a href='x'>",
    "two\n\nparts",
    "9" * 30,
)


def everything(graph: Graph) -> Iterator[Node]:
    """All nodes, sub-graphs included."""
    for node in graph:
        yield node
        if isinstance(node, Switch):
            for arm in node.arms:
                yield from everything(arm.graph)
        elif isinstance(node, (Loop, Map)):
            yield from everything(node.body)


def breaks(graph: Graph) -> list[Break]:
    """The Breaks anywhere in a graph."""
    return [node for node in everything(graph) if isinstance(node, Break)]


def kinds(graph: Graph) -> list[str]:
    """The kinds of the top level, in order."""
    return [node.kind for node in graph]


def did(run: Callable[[], TrialRun]) -> Any:
    """Calls (in any order), text and returned value; or that it failed."""
    try:
        performed = run()
    except Exception:  # noqa: BLE001  body and graph fail with errors of their own
        return "failed"
    returned = performed.root.outcomes.get("return")
    calls = sorted((repr(call.what), call.prompt) for call in performed.calls)
    return calls, performed.root.end, None if returned is None else returned.value


def run_body(program: Any, samples: Samples, *args: Any, **kwargs: Any) -> TrialRun:
    """The body, for real, on samples."""
    backend = TrialExecutor(samples)
    program.run(*args, options=RunOptions(backend=backend), **kwargs)
    assert backend.run is not None
    return backend.run


def run_graph(graph: Graph, samples: Samples, registry: Any = None, **arguments: Any) -> TrialRun:
    """The graph on the same samples."""
    backend = TrialExecutor(samples)
    spec = RunSpec(
        program=graph.name, options=RunOptions(backend=backend), arguments=arguments, registry=registry or {}
    )
    execute(graph, backend, spec)
    assert backend.run is not None
    return backend.run


def assert_same(program: Any, graph: Graph, *args: Any, texts: Sequence[str] = OTHERS) -> None:
    """Body and graph do the same for each of many values."""
    for trial in range(len(texts)):
        samples = Samples(trial, texts)
        registry: dict[str, Any] = {}

        def body(samples: Samples = samples, registry: dict[str, Any] = registry) -> TrialRun:
            run = run_body(program, samples, *args)
            registry.update(run.registry)
            return run

        def from_graph(samples: Samples = samples, registry: dict[str, Any] = registry) -> TrialRun:
            return run_graph(graph, samples, registry)

        expected = did(body)
        assert did(from_graph) == expected
