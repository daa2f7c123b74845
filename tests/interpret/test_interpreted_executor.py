from __future__ import annotations

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import BackendNotFoundError, SpecError
from sglang_dsl.ir.execution import Executor, RunSpec, execute
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Fork, Gen, Plain, Text
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions
from sglang_dsl.runtime.backends.interpreted import InterpretedExecutor

GRAPH = Graph([Text(id="t", pieces=(Plain("x "),)), Gen(id="g", context="t", model="judge")], name="p")


def test_executor_opens_named_models_from_the_options() -> None:
    judge = InterpretedExecutor("judge", FakeTarget(lambda r: "guilty"), lambda: None)
    main = InterpretedExecutor("main", FakeTarget(), lambda: None)
    run = execute(GRAPH, main, RunSpec(options=RunOptions(models={"judge": judge})))
    assert run.value("g").result(1).value == "guilty"


def test_executor_refuses_unknown_names_and_backends_without_a_model() -> None:
    class Elsewhere:
        name = "elsewhere"

        def open(self, spec: object) -> object: ...
        def meter(self) -> object: ...
        def close(self) -> None: ...

    main = InterpretedExecutor("main", FakeTarget(), lambda: None)
    with pytest.raises(BackendNotFoundError, match="nowhere"):
        main.open(RunSpec(options=RunOptions(models={"judge": "nowhere"})))
    with pytest.raises(SpecError, match="has no model of its own"):
        main.open(RunSpec(options=RunOptions(models={"judge": Elsewhere()})))  # type: ignore[dict-item]


def test_executor_closes_once() -> None:
    closed: list[int] = []
    executor = InterpretedExecutor("main", FakeTarget(), lambda: closed.append(1))
    assert isinstance(executor, Executor)
    with executor:
        executor.close()
    assert closed == [1]


def test_meter_renders_counts_and_audits() -> None:
    meter = InterpretedExecutor("main", FakeTarget(), lambda: None).meter()
    assert (meter.model, meter.context_tokens, meter.kv_bytes_per_token) == ("fake", 4096, 2)
    assert meter.count("two words") == 2
    assert [s.text for s in meter.render([GRAPH["t"]], {})] == ["x "]
    assert meter.audit(ConstraintSpec.choices(("a",))).findings == ()


def test_namespace_of_the_options_reaches_every_request_and_models_keep_their_own() -> None:
    target, judge = FakeTarget(lambda r: "x"), FakeTarget(lambda r: "x")
    named = InterpretedExecutor("judge", judge, lambda: None)
    options = RunOptions(namespace="ann", models={"judge": named}, priority=3)
    execute(GRAPH, InterpretedExecutor("main", target, lambda: None), RunSpec(options=options)).value("g").result(1)
    [request] = judge.requests
    assert (request.namespace.user_key, request.namespace.model, request.priority) == ("ann", "fake", 3)


def test_meter_encodes_what_many_paths_begin_with_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget(lambda request: "")
    encoded: list[str] = []
    encode = target.text.tokenizer.encode_segment

    def counted(pieces, *, first=False):
        encoded.append(pieces[0].text)
        return encode(pieces, first=first)

    monkeypatch.setattr(target.text.tokenizer, "encode_segment", counted)
    meter = InterpretedExecutor("fake", target, lambda: None).meter()
    shared = [Text(id="t", pieces=(Plain("shared"),)), Fork(id="f", size=2, context="t")]
    for branch in (0, 1):
        own = Text(id=f"b{branch}", pieces=(Plain(f"own {branch}"),), context="f", branch=branch)
        assert [s.text for s in meter.render([*shared, own], {})] == ["shared", f"own {branch}"]
    assert encoded == ["shared", "own 0", "own 1"]
