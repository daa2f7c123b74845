"""What happened when: trace-event JSON, for chrome://tracing, Perfetto and Speedscope.

Source: "Trace Event Format" of the Catapult project (complete events "X", counters "C", metadata "M"; microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import SpecError
from ..execution import Meta, Outcome
from ..graph import Graph
from .labels import instances, names_of, title


class TimelineBar(NamedTuple):
    """A finished model call: its node and that one's kind, its id in the run, what it is called, what is known about it."""

    node: str
    kind: str
    id: str
    name: str
    meta: Meta


def draw_timeline(graph: Graph, outcomes: Mapping[str, Outcome]) -> str:
    """The calls of a run as trace events: one bar per call, in as few lanes as its overlaps need.

    Raises:
        SpecError: there are no outcomes with times.
    """
    calls = calls_of_run(graph, outcomes)
    if not calls:
        raise SpecError(
            "a timeline needs the outcomes of a run", hint="draw(result.graph, 'trace', outcomes=result.outcomes)"
        )
    events = [_metadata(graph.name), *_call_events(calls), *_load_events(calls)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False) + "\n"


def calls_of_run(graph: Graph, outcomes: Mapping[str, Outcome]) -> list[TimelineBar]:
    """The calls that finished. outcomes: by the ids of the run."""
    names = names_of(graph)
    return [
        TimelineBar(made.node.id, made.node.kind, made.id, title(made.node, names), made.given.meta)
        for made in instances(graph, outcomes)
        if made.given.meta is not None
    ]


def _metadata(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": name or "program"}}


def _call_events(calls: list[TimelineBar]) -> Iterator[dict[str, Any]]:
    free_at: list[float] = []  # when each lane is free again
    for call in sorted(calls, key=lambda c: (c.meta.started_s, c.meta.finished_s)):
        lane = next((i for i, at in enumerate(free_at) if at <= call.meta.started_s), len(free_at))
        free_at[lane : lane + 1] = [call.meta.finished_s]
        yield _event(call, lane, call.name, call.meta.started_s, call.meta.finished_s)
        if call.meta.started_s < call.meta.first_token_s <= call.meta.finished_s:
            yield _event(call, lane, "prefill", call.meta.started_s, call.meta.first_token_s)


def _event(call: TimelineBar, lane: int, name: str, start_s: float, end_s: float) -> dict[str, Any]:
    meta = call.meta
    return {
        "ph": "X",
        "pid": 1,
        "tid": lane + 1,
        "cat": call.kind,
        "name": name,
        "ts": round(start_s * 1e6, 1),
        "dur": round(max(end_s - start_s, 0) * 1e6, 1),
        "args": {
            "node": call.id,
            "prompt_tokens": meta.prompt_tokens,
            "cached_tokens": meta.cached_tokens,
            "computed_tokens": meta.computed_tokens,
            "generated_tokens": meta.generated_tokens,
            "finish": meta.finish_reason,
            "model": meta.model,
        },
    }


def _load_events(calls: list[TimelineBar]) -> Iterator[dict[str, Any]]:
    """How many calls run at each moment."""
    changes = sorted([(c.meta.started_s, 1) for c in calls] + [(c.meta.finished_s, -1) for c in calls])
    running = 0
    for at_s, change in changes:
        running += change
        yield {"ph": "C", "pid": 1, "tid": 0, "name": "calls", "ts": round(at_s * 1e6, 1), "args": {"running": running}}
