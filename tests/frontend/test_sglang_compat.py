"""SGLang's names over ours. B-numbers are its known faults, each with what happens here instead."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

import sglang_dsl.sglang as sgl
from sglang_dsl import MISSING, use
from sglang_dsl.errors import BackendNotFoundError, DecorationError, JoinError, RoleError, SpecError
from sglang_dsl.ir.nodes import Gen, Input


@sgl.function
def qa(s, question):
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, stop="\n"))


def gens(state):
    return [n for n in state.inner._cursor.recorder.graph if isinstance(n, Gen)]


def test_run_returns_a_state_with_sglangs_methods(fake):
    state = qa.run(question="Why?", backend=fake({"answer": ["So."]}))
    assert state["answer"] == state.get_var("answer") == "So."
    assert state.text() == "<system>Be brief.</><user>Why?</><assistant>So.</>"
    assert state.messages()[-1] == {"role": "assistant", "content": "So."}
    assert "answer" in state
    assert "other" not in state
    assert state.error() is None
    assert state.get_meta_info("answer")["finish_reason"] == {"type": "stop", "matched": None}
    assert list(state.text_iter()) == [state.text()]


def test_sampling_of_a_gen_wins_over_that_of_the_run_over_the_defaults(fake):
    @sgl.function
    def p(s):
        s += sgl.gen("a") + sgl.gen("b", temperature=0.5, stop=["x"], top_k=-1)

    state = p.run(temperature=0, stop=["run"], max_new_tokens=9, backend=fake())
    a, b = (n.sampling for n in gens(state))
    assert (a.temperature, a.stop, a.max_tokens) == (0, ("run",), 9)
    assert (b.temperature, b.stop, b.max_tokens, b.top_k) == (0.5, ("x",), 9, 0)
    assert [n.sampling.max_tokens for n in gens(p.run(backend=fake()))] == [128, 128]


def test_sampling_of_the_run_reaches_branches(fake):
    @sgl.function
    def p(s):
        forks = s.fork(2)
        forks += sgl.gen("v")
        forks.join()

    assert {n.sampling.temperature for n in gens(p.run(temperature=0.25, backend=fake()))} == {0.25}


def test_values_have_the_type_asked_for(fake):
    @sgl.function
    def p(s):
        s += sgl.gen_int("i", stop=".") + sgl.gen("f", dtype=float) + sgl.gen("b", dtype="bool") + sgl.gen_string("s")
        s += sgl.gen("j", json_schema=json.dumps({"type": "object"}))
        s += sgl.gen("c", choices=["x", "y"]) + sgl.select("k", choices=["p", "q"])

    script = {"i": ["516"], "f": ["1.5"], "b": ["True"], "s": ['"ab c"'], "j": ['{"a": 1}'], "c": ["y"], "k": ["q"]}
    state = p.run(backend=fake(script))
    assert [state[n] for n in "ifbsjck"] == [516, 1.5, True, '"ab c"', '{"a": 1}', "y", "q"]


def test_fork_and_join_gather_aligned_lists(fake):
    @sgl.function
    def p(s):
        s += "tips: "
        forks = s.fork(3)
        forks += lambda i: f"{i} "
        forks += "text, "  # a str raises in SGLang
        forks[0] += sgl.gen("v")
        forks[2] += sgl.gen("v")
        assert len(forks) == 3
        forks.join()
        s += str(s["v"][0])

    assert p.run(backend=fake())["v"] == ["v1", MISSING, "v2"]


def test_join_concatenates_text_b1(fake):
    @sgl.function
    def p(s):
        forks = s.fork(2)
        forks += ["a", "b"]
        forks.join("concate_and_append")
        s += "c"

    assert p.run(backend=fake()).text() == "abc"


def test_failed_call_never_hangs_and_shows_its_cause_b2_b3(fake):
    @sgl.function
    def p(s):
        s += "BOOM " + sgl.gen("a")

    state = p.run(backend=fake(fail_if="BOOM"))
    assert "BOOM" in str(state.error())
    with pytest.raises(RuntimeError, match="BOOM"):
        state["a"]
    state.sync()


def test_append_after_a_failure_raises_at_once_b2(fake):
    @sgl.function
    def p(s):
        s += "BOOM " + sgl.gen("a")
        s.fork(2)

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="BOOM"):
        p.run(backend=fake(fail_if="BOOM"))
    assert time.monotonic() - began < 2


def test_batch_keeps_the_results_of_the_others_b4(fake):
    @sgl.function
    def p(s, x):
        if x == "bad":
            raise ValueError(x)
        s += x + sgl.gen("a")

    states = p.run_batch([{"x": "1"}, {"x": "bad"}, ("BOOM",), {"x": "2"}], backend=fake(fail_if="BOOM"))
    assert [type(s.error()).__name__ for s in states] == ["NoneType", "ValueError", "RuntimeError", "NoneType"]
    assert states[3]["a"].startswith("a")


def test_batch_in_generator_style_keeps_the_order(fake):
    states = qa.run_batch([{"question": str(i)} for i in range(5)], backend=fake(), generator_style=True, num_threads=3)
    assert not isinstance(states, list)
    assert [s.messages()[1]["content"] for s in states] == list("01234")


def test_several_samples_are_a_list_b5(fake):
    @sgl.function
    def p(s):
        s += sgl.gen("a", n=3)

    assert p.run(backend=fake())["a"] == ["a1", "a2", "a3"]


def test_lists_of_the_caller_are_not_changed_b7(fake):
    stop = ["\n"]

    @sgl.function
    def p(s):
        s += sgl.assistant(sgl.gen("a", stop=stop))

    for _ in range(3):
        p.run(backend=fake())
    assert stop == ["\n"]


def test_reasoning_is_kept_apart_and_text_before_stays_b9(fake):
    @sgl.function
    def p(s):
        s += sgl.assistant(sgl.separate_reasoning("Answer: " + sgl.gen("a") + sgl.gen("b"), model_type="qwen3"))

    state = p.run(backend=fake({"a": ["1"], "b": ["2"]}))
    assert state.text() == "<assistant>Answer: 12</>"
    assert (state["a"], state["a_reasoning_content"], state["b_reasoning_content"]) == ("1", "", "")
    assert all(n.reasoning is not None for n in gens(state))
    with pytest.raises(SpecError, match="qwen3"):
        sgl.separate_reasoning(sgl.gen("a"), model_type="nothing")


def test_stream_gives_text_and_the_error_of_the_body_b10_b11(fake):
    @sgl.function
    def p(s):
        s += "a"
        raise ValueError("mine")

    state = p.run(stream=True, backend=fake())
    pieces = state.text_iter()
    assert next(pieces) == "a"
    with pytest.raises(ValueError, match="mine"):
        next(pieces)
    assert isinstance(state.error(), ValueError)


def test_stream_of_one_variable_and_of_the_text(fake):
    state = qa.run(question="Why?", stream=True, backend=fake({"answer": ["So."]}))
    assert "".join(state.text_iter("answer")) == "So."
    assert "".join(state.text_iter()) == "<system>Be brief.</><user>Why?</><assistant>So.</>"

    async def collect():
        other = qa.run(question="Why?", stream=True, backend=fake({"answer": ["So."]}))
        return [piece async for piece in other.text_async_iter("answer", return_meta_data=True)]

    *texts, (_, meta) = asyncio.run(collect())
    assert "".join(text for text, _ in texts) == "So."
    assert meta["completion_tokens"] == 3


def test_program_called_inside_another_uses_its_backend_b16(fake):
    backend = fake()

    @sgl.function
    def p(s):
        s += qa(question="inner")["answer"]

    assert p.run(backend=backend).text() == "answer1"
    assert len(backend.runs) == 2


def test_parameters_of_the_program_are_not_taken_by_run_b18(fake):
    @sgl.function
    def p(s, n, stop, temperature):
        s += f"{n} {stop} {temperature}"

    assert p.run(n=5, stop="x", temperature=9, backend=fake()).text() == "5 x 9"


def test_statement_and_append_forms_of_a_turn_append_it_once(fake):
    @sgl.function
    def p(s):
        s.system("a")
        s += s.user("b")
        with s.assistant():
            s += sgl.gen("x")

    assert [m["role"] for m in p.run(backend=fake()).messages()] == ["system", "user", "assistant"]


def test_nested_roles_and_open_blocks(fake):
    @sgl.function
    def p(s):
        s += sgl.user_begin() + "q" + sgl.user_end()
        try:
            with s.user():
                raise KeyError
        except KeyError:
            pass
        s += sgl.assistant("ok")

    assert len(p.run(backend=fake()).messages()) == 3
    with pytest.raises(RoleError):
        sgl.user(sgl.assistant("x"))


def test_copy_brings_its_variables_back_as_plain_values(fake):
    @sgl.function
    def p(s):
        s += "a"
        with s.copy() as inner:
            inner += "b" + sgl.gen("x")
        s += "c" + s["x"]

    assert p.run(backend=fake()).text() == "acx1"


def test_variables_set_by_hand_and_var_scope(fake):
    @sgl.function
    def p(s):
        s["x"] = 5
        first = s["x"]
        with s.var_scope("story"):
            s += "t" + sgl.gen("x")
        return first, s["x"], s["story"]

    assert p.run(backend=fake()).ret_value == (5, "x1", "tx1")


def test_bound_arguments_give_way(fake):
    bound = qa.bind(question="bound")
    assert bound.run(backend=fake()).messages()[1]["content"] == "bound"
    assert bound.run(question="run", backend=fake()).messages()[1]["content"] == "run"
    batch = [{}]
    bound.run_batch(batch, backend=fake())
    assert batch == [{}]


def test_trace_leaves_what_is_not_given_unknown():
    graph = qa.trace()
    assert [n.name for n in graph if isinstance(n, Input)] == ["question"]
    assert qa.cache() is None


def test_default_backend_stands_behind_use_and_arguments(fake):
    default, used, given = fake(), fake(), fake()
    sgl.set_default_backend(default)
    try:
        qa.run(question="a")
        with use(backend=used):
            qa.run(question="b")
        qa.run(question="c", backend=given)
    finally:
        sgl.set_default_backend(None)
    assert [len(b.runs) for b in (default, used, given)] == [1, 1, 1]


@pytest.mark.parametrize("name", ["RuntimeEndpoint", "OpenAI", "Anthropic", "LiteLLM", "VertexAI", "Crusoe", "Runtime"])
def test_remote_backends_answer_by_name(name):
    with pytest.raises(BackendNotFoundError, match=name):
        getattr(sgl, name)("http://localhost:30000")


def test_things_that_go_wrong_silently_there_are_refused():
    with pytest.raises(SpecError):
        sgl.gen("a", choices=[])
    with pytest.raises(SpecError):
        sgl.gen("a", dtype=int, regex="a")
    with pytest.raises(SpecError):
        sgl.select("a", ["x"], temperature=0.5)
    with pytest.raises(SpecError, match="not JSON"):
        sgl.gen("a", json_schema="{")
    with pytest.raises(DecorationError):

        @sgl.function
        async def p(s):
            pass


def test_failed_branch_is_an_error_of_the_join_not_a_shorter_list(fake):
    @sgl.function
    def p(s):
        forks = s.fork(2)
        forks += ["fine ", "BOOM "]
        forks += sgl.gen("v")
        forks.join()
        return s["v"]

    with pytest.raises(JoinError):
        p.run(backend=fake(fail_if="BOOM"))


def test_wide_fork_adds_no_thread(fake):
    @sgl.function
    def p(s):
        forks = s.fork(400)
        forks += sgl.gen("v")
        forks.join()
        s["threads"] = threading.active_count()

    before = threading.active_count()
    state = p.run(backend=fake())
    assert state["threads"] <= before  # threads of earlier tests may end meanwhile
    assert len(state["v"]) == 400
