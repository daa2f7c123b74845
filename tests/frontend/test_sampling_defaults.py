"""Sampling said once for a run, and engine options (case: 409)."""

from __future__ import annotations

import pytest

import sglang_dsl
from sglang_dsl import RunOptions, SamplingSpec, State, gen, local, program, use
from sglang_dsl.errors import SpecError
from sglang_dsl.ir.nodes import Gen
from sglang_dsl.testing import mock


@program
def ask(s: State):
    s += gen("a") + gen("b", temperature=1.0, stop=[]) + gen("c", max_tokens=3, n=2)


def sampled(run=ask.run, **options):
    graph = run(options=RunOptions(backend=mock({"a": "x", "b": "y", "c": ["z", "z"]}), **options)).graph
    return {node.name: node.sampling for node in graph if isinstance(node, Gen)}


def test_run_says_what_calls_leave_out_and_calls_say_the_rest():
    found = sampled(sampling={"temperature": 0, "max_tokens": 9, "stop": "\n"})
    assert found["a"] == SamplingSpec(temperature=0, max_tokens=9, stop=("\n",))
    assert found["b"] == SamplingSpec(temperature=1.0, max_tokens=9)
    assert found["c"] == SamplingSpec(temperature=0, max_tokens=3, stop=("\n",))
    assert sampled()["a"] == SamplingSpec()


def test_surroundings_say_it_too_and_are_merged():
    with use(temperature=0, top_k=5), use(sampling={"top_k": 7}):
        found = sampled(sampling={"max_tokens": 9})["a"]
        traced = next(node for node in ask.trace() if isinstance(node, Gen))
    assert found == SamplingSpec(temperature=0, top_k=7, max_tokens=9)
    assert traced.sampling == SamplingSpec(temperature=0, top_k=7)


def test_explain_counts_with_the_runs_defaults():
    explained = ask.explain(options=RunOptions(backend=mock({}), sampling={"max_tokens": 5}))
    assert "at most 8 tokens" in str(explained) or " 5" in str(explained)


@pytest.mark.parametrize(
    "wrong", [{"temprature": 0}, {"temperature": -1}, {"max_tokens": "9"}, 3, [("temperature", 0)], {"stop": [""]}]
)
def test_wrong_defaults_are_refused_where_they_are_given(wrong):
    with pytest.raises(SpecError):
        RunOptions(sampling=wrong)


def test_defaults_that_a_call_cannot_be_combined_with_are_its_error():
    def body(s: State):
        s += gen("a", min_tokens=5)

    with pytest.raises(SpecError, match="min_tokens=5") as caught:
        program(body).run(options=RunOptions(backend=mock({}), sampling={"max_tokens": 2}))
    assert caught.value.origin.statement.startswith("s += gen")


def test_unknown_engine_option_is_refused_by_name_before_anything_is_loaded():
    with pytest.raises(SpecError, match="'batch_invarient'"):
        local("smollm2", batch_invarient=True)
    assert sglang_dsl.local is local
