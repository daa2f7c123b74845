"""Counters, histograms, Prometheus text, logs."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import replace

import pytest
from rich.console import Console

from sglang_dsl.cli.output import live, table
from sglang_dsl.errors import SpecError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.metrics import SECONDS, Histogram, render

GREEDY = SamplingSpec(temperature=0)


def test_metrics_thousand_requests_count_no_abort_and_leave_nothing(lab):
    engine = lab.engine(stepped=False, config=EngineConfig(idle_check_after_s=0.0))
    results = engine.generate_batch([f"prompt {i % 50}" for i in range(1000)], GREEDY)
    assert {result.text for result in results} == {"abc"}
    snapshot = engine.snapshot()
    assert snapshot.submitted == snapshot.ended == snapshot.finished["eos"] == 1000
    assert (snapshot.cancelled, dict(snapshot.failed), snapshot.live) == (0, {}, 0)
    assert snapshot.prompt_tokens == snapshot.cached_tokens + snapshot.computed_tokens
    assert snapshot.generated_tokens == 4000
    lab.assert_clean()


def test_metrics_histograms_count_what_happened(lab):
    engine = lab.engine(step_s=0.25)
    engine.generate("p", GREEDY)
    histograms = engine.snapshot().histograms
    assert histograms["first_token_s"].count == histograms["request_s"].count == 1
    assert histograms["first_token_s"].total == 0.25
    assert histograms["inter_token_s"].count == 3
    assert histograms["inter_token_s"].mean == 0.25
    assert histograms["worker_s"].count == histograms["schedule_s"].count == histograms["output_s"].count == 4


def test_metrics_histogram_puts_borders_into_the_lower_bucket():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.counts == (2, 2, 1)
    assert (snapshot.quantile(0.4), snapshot.quantile(0.8), snapshot.quantile(1.0)) == (1.0, 2.0, 2.0)
    assert Histogram(SECONDS).snapshot().quantile(0.5) == 0.0


def test_metrics_prometheus_text_is_well_formed_and_cumulative(lab):
    pytest.importorskip("prometheus_client")
    engine = lab.engine()
    engine.generate_batch(["a", "b"], GREEDY)
    text = render(engine.snapshot())
    sample = re.compile(r'^sglang_dsl_[a-z_]+\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\} (-?\d+(\.\d+)?(e-?\d+)?|inf)$')
    lines = text.splitlines()
    assert all(line.startswith("# ") or sample.match(line) for line in lines)
    assert 'sglang_dsl_finished_total{model="scripted",reason="eos"} 2.0' in lines
    buckets = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("sglang_dsl_request_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_metrics_names_in_labels_are_escaped(lab):
    pytest.importorskip("prometheus_client")
    engine = lab.engine()
    snapshot = replace(engine.snapshot(), model='a"b\\c\nd')
    assert 'model="a\\"b\\\\c\\nd"' in render(snapshot)


def test_metrics_peak_pages_are_those_held_at_once(lab):
    engine = lab.engine(default=["t"] * 4)
    engine.generate(lab.ids("a b c d e f"), SamplingSpec(temperature=0, max_tokens=4))
    assert 6 <= engine.snapshot().scheduler.peak_used_pages <= 12


def test_metrics_results_know_the_pages_held_while_they_ran(lab):
    engine = lab.engine(default=["t"] * 4)
    first = engine.generate(lab.ids("a b c d e f"), SamplingSpec(temperature=0, max_tokens=4))
    assert 9 <= first.peak_kv_pages <= 12
    alone = engine.generate(lab.ids("x"), SamplingSpec(temperature=0, max_tokens=1))
    assert alone.peak_kv_pages <= 2  # what only the cache keeps is not held
    pair = engine.generate_batch([lab.ids("a b c"), lab.ids("u v w")], SamplingSpec(temperature=0, max_tokens=1))
    assert all(6 <= result.peak_kv_pages <= 9 for result in pair)


def test_metrics_logs_are_structured(lab, caplog):
    caplog.set_level(logging.DEBUG, logger="sglang_dsl.engine")
    engine = lab.engine()
    lab.worker.raise_at[1] = RuntimeError("boom")
    engine.generate_batch(["a"], GREEDY)
    engine.generate("b", GREEDY)
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events == ["engine.fault", "request.failed", "request.finished"]
    assert caplog.records[-1].request_id == "native-2"


def test_metrics_table_shows_the_state(lab):
    engine = lab.engine()
    engine.generate("p", GREEDY)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(engine.snapshot(), engine.health()))
    shown = console.export_text()
    assert "scripted" in shown
    assert "ok" in shown
    assert "generated" in shown


def test_metrics_live_table_leaves_the_last_state(lab):
    engine = lab.engine(stepped=False)
    console = Console(width=100, record=True, file=io.StringIO())
    with live(engine, console):
        engine.generate("p", GREEDY)
    shown = console.export_text()
    assert "1 ended" in shown
    assert "4 tokens" in shown


@pytest.mark.parametrize("option", ["gather_s", "idle_check_after_s", "health_window_s", "close_timeout_s"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_metrics_config_out_of_range_is_refused(option, value):
    with pytest.raises(SpecError, match=option):
        EngineConfig(**{option: value})


def test_metrics_config_checks_the_schedulers_options_too():
    with pytest.raises(SpecError):
        EngineConfig(max_running=0)
