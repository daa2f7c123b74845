from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, gen, program, select
from sglang_dsl.errors import CassetteError
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.record import load_record, save_record
from sglang_dsl.runtime.backends.replay import RecordedExecutor
from sglang_dsl.testing import mock

V = gen("v", max_tokens=8)


@program
def sample(s: State, question: str) -> Any:
    s += question
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch += f" {i}: "
        branch += V
    first = branches.first(V)
    s += " chosen: "
    s += first
    s += select("k", ["a", "b"])
    return {"first": list(first), "k": s["k"]}


def script(call: Any) -> Any:
    if call.choices:
        return "b"
    return "one" if " 1: " in call.prompt else "one two three"


def recorded(path: Path) -> Any:
    backend = mock(script)
    run = backend.open(RunSpec(program="p", options=RunOptions(seed=5)))
    graph = sample.run("why", options=RunOptions(backend=backend, seed=5)).graph
    run.extend(list(graph))
    run.seal().result(10)
    save_record(run.record(), path)
    return load_record(path)


def test_record_of_a_run_holds_nodes_outcomes_errors_usage_and_winners(tmp_path: Path) -> None:
    record = recorded(tmp_path / "run.jsonl")
    assert record.seed == 5
    assert record.usage.calls == 2
    assert [o.winners for o in record.outcomes.values() if o.winners] == [(1,)]
    assert len(record.errors) == 2
    assert record.versions["mock"] == "0"


def test_record_replays_the_program_exactly_without_a_model(tmp_path: Path) -> None:
    record = recorded(tmp_path / "run.jsonl")
    original = sample.run("why", options=RunOptions(backend=mock(script), seed=5))
    again = sample.run("why", options=RunOptions(backend=RecordedExecutor(record)))
    assert again.value == original.value == {"first": ["one"], "k": "b"}
    assert again.text == original.text
    assert again.usage == record.usage
    assert again.seed == 5


def test_record_of_a_graph_replays_the_graph(tmp_path: Path) -> None:
    record = recorded(tmp_path / "run.jsonl")
    run = execute(record.graph, RecordedExecutor(record))
    assert {i: run.value(i).result(1) for i in record.outcomes} == record.outcomes


def test_record_refuses_a_program_that_has_changed(tmp_path: Path) -> None:
    record = recorded(tmp_path / "run.jsonl")
    with pytest.raises(CassetteError, match="differs from the recorded one"):
        sample.run("why not", options=RunOptions(backend=RecordedExecutor(record)))
