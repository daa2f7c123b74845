"""Times mean what they say (cases: 314): a call starts when the step that computes it begins."""

from __future__ import annotations

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.testing import CostModel, cassette, mock

PREFILL_S = 50.0


@program
def slow_prefill(s):
    s += "word " * 500
    s += gen("a", max_tokens=3)
    s += select("b", [" x", " y"])


@pytest.mark.parametrize("config", [None, EngineConfig(max_batch_tokens=128, max_running=8)])
def test_a_call_starts_when_the_step_that_computes_it_begins(config):
    cost = CostModel(step_s=0.01, prompt_token_s=0.1)
    with mock({"a": "1 2 3", "b": " x"}, cost=cost, config=config) as backend:
        result = slow_prefill.run(options=RunOptions(backend=backend))
        a, b = result.state.meta("a"), result.state.meta("b")
    assert a.started_s == pytest.approx(0.0, abs=1e-6)
    assert a.first_token_s > 40
    assert a.finished_s <= b.started_s < b.finished_s


def test_a_call_that_waits_for_room_starts_later():
    @program
    def two(s):
        branches = s.fork(2)
        for i, branch in enumerate(branches):
            branch += f"prompt {i}"
            branch += gen(f"a{i}", max_tokens=5)
        return branches.join()

    config = EngineConfig(max_running=1)
    with mock(unscripted="echo", cost=CostModel(step_s=1.0), config=config) as backend:
        state = two.run(options=RunOptions(backend=backend)).record
    metas = sorted((o.meta for o in state.outcomes.values() if o.meta is not None), key=lambda m: m.started_s)
    assert metas[0].started_s == 0.0
    assert metas[1].started_s >= metas[0].finished_s - 1e-6


def test_the_time_of_a_replay_is_that_of_the_recording(tmp_path):
    path = tmp_path / "tape.jsonl"
    walls = []
    for mode in ("record", "replay"):
        with mock({"a": ["1 2 3"] * 2, "b": [" x"] * 2}, cost=CostModel(step_s=1.0)) as real:
            real.verify = lambda: None
            slow_prefill.run(options=RunOptions(backend=real))  # the clock does not stand at 0 when recording begins
            with cassette(path, mode=mode, backend=real) as tape:
                walls.append(slow_prefill.run(options=RunOptions(backend=tape)).usage.wall_s)
    assert walls[1] == pytest.approx(walls[0], abs=2.0)
