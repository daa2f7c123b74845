"""A snapshot in the Prometheus text format.

Source: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from .metrics import EngineSnapshot, HistogramName, HistogramSnapshot

PREFIX = "sglang_dsl_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "submitted": "Requests taken in.",
    "cancelled": "Requests that were cancelled.",
    "prompt_tokens": "Prompt tokens of finished requests.",
    "cached_tokens": "Of these, found in the prefix cache or shared with a sibling.",
    "computed_tokens": "Of these, put through the model.",
    "generated_tokens": "Tokens sampled.",
    "steps": "Steps of the model.",
    "step_faults": "Steps in which the model raised.",
    "request_faults": "Requests that failed through a fault of the engine.",
    "sink_faults": "Exceptions raised by receivers of output.",
    "leaks": "Idle checks that found pages without an owner.",
}
_HISTOGRAMS: Mapping[HistogramName, str] = {
    "queue_s": "Seconds from submission to admission.",
    "compile_s": "Seconds a request waited for its constraint to be compiled.",
    "first_token_s": "Seconds from submission to the first token.",
    "inter_token_s": "Seconds between two tokens of a request.",
    "request_s": "Seconds from submission to the end.",
    "schedule_s": "Seconds per step spent on planning and bookkeeping.",
    "worker_s": "Seconds per step spent in the model.",
    "output_s": "Seconds per step spent on text, stops and receivers.",
    "step_tokens": "Tokens computed per step.",
    "step_rows": "Sequences per step.",
}


def render(snapshot: EngineSnapshot) -> str:
    """All counters, gauges and histograms, labelled with the model's name."""
    return "".join(f"{line}\n" for line in _lines(snapshot))


def _lines(snapshot: EngineSnapshot) -> Iterator[str]:
    model = {"model": snapshot.model}
    for name, text in _COUNTERS.items():
        yield from _family(f"{name}_total", "counter", text)
        yield _sample(f"{name}_total", model, getattr(snapshot, name))
    yield from _family("finished_total", "counter", "Requests that ended well, by finish reason.")
    for reason, count in sorted(snapshot.finished.items()):
        yield _sample("finished_total", {**model, "reason": reason}, count)
    yield from _family("failed_total", "counter", "Requests that failed, by error code.")
    for code, count in sorted(snapshot.failed.items()):
        yield _sample("failed_total", {**model, "code": code}, count)
    yield from _family("live", "gauge", "Requests submitted and not ended.")
    yield _sample("live", model, snapshot.live)
    yield from _scheduler_lines(snapshot, model)
    for name, text in _HISTOGRAMS.items():
        unit = f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name
        yield from _family(unit, "histogram", text)
        yield from _buckets(unit, model, snapshot.histograms[name])


def _scheduler_lines(snapshot: EngineSnapshot, model: Mapping[str, str]) -> Iterator[str]:
    for item in fields(snapshot.scheduler):
        value = getattr(snapshot.scheduler, item.name)
        if isinstance(value, int | float):
            yield from _family(f"scheduler_{item.name}", "gauge", f"The scheduler's {item.name.replace('_', ' ')}.")
            yield _sample(f"scheduler_{item.name}", model, value)


def _family(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _buckets(name: str, labels: Mapping[str, str], histogram: HistogramSnapshot) -> Iterator[str]:
    seen = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        le = "+Inf" if bound == float("inf") else repr(bound)
        yield _sample(f"{name}_bucket", {**labels, "le": le}, seen)
    yield _sample(f"{name}_sum", labels, histogram.total)
    yield _sample(f"{name}_count", labels, seen)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{PREFIX}{name}{{{inside}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
