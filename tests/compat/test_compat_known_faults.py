"""The known faults of SGLang's frontend (B1, B2, ... as in docs/from_sglang.md), each on the mock: ours does the right thing.

B13, B14 and B15 are faults of its remote backends, which this version does not have.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

import sglang_dsl.sglang as sgl
from sglang_dsl.errors import EngineError, UnknownNameError
from sglang_dsl.testing import fails, mock, pieces

SOON_S = 5.0  # far above what any of this takes, far below a hang


@pytest.fixture(autouse=True)
def ends_soon():
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S


def test_b1_join_by_text_appends_it_and_the_program_goes_on():
    @sgl.function
    def p(s):
        s += "list:"
        forks = s.fork(2)
        forks += lambda i: f" {i}."
        forks += sgl.gen("item")
        forks.join("concate_and_append")
        s += " end" + sgl.gen("last")

    with mock({"item": ["a", "b"], "last": "!"}) as backend:
        state = p.run(backend=backend)
        assert state.text() == "list: 0.a 1.b end!"
    assert backend.calls("last")[0].prompt.endswith("list: 0.a 1.b end")


@pytest.mark.parametrize("late", ["fork", "append"])
def test_b2_what_comes_after_a_failure_raises_it_at_once(late):
    @sgl.function
    def p(s):
        s += sgl.gen("a")
        s.sync()
        if late == "fork":
            s.fork(2)
        else:
            s += "more"

    with pytest.raises(EngineError, match="no luck"):
        p.run(backend=mock({"a": fails("no luck")}))


def test_b2_b3_every_reader_of_a_failed_state_ends_and_sees_the_cause():
    @sgl.function
    def p(s):
        s += sgl.user("Q") + sgl.assistant(sgl.gen("a"))

    state = p.run(backend=mock({"a": fails("no luck")}))
    state.sync()
    assert isinstance(state.error(), EngineError)
    for read in (lambda: state["a"], state.text, state.messages, lambda: state.get_meta_info("a")):
        with pytest.raises(EngineError, match="no luck"):
            read()


def test_b4_one_failing_program_of_a_batch_loses_no_other():
    @sgl.function
    def p(s, x):
        if x == 1:
            raise ValueError("mine")
        s += f"{x}" + sgl.gen("a")

    states = p.run_batch(
        [{"x": x} for x in range(4)], backend=mock(lambda call: fails("no luck") if "2" in call.prompt else "ok")
    )
    assert [type(state.error()) for state in states] == [type(None), ValueError, EngineError, type(None)]
    assert (states[0]["a"], states[3]["a"]) == ("ok", "ok")
    with pytest.raises(EngineError, match="no luck"):
        states[2]["a"]


def test_b5_several_samples_of_a_gen_are_a_list():
    @sgl.function
    def p(s):
        s += "Q" + sgl.gen("a", n=3)

    state = p.run(backend=mock({"a": ["x", "y", "z"]}))
    assert state["a"] == ["x", "y", "z"]
    assert state.text() == "Qx"


def test_b6_the_text_before_a_fork_is_computed_once():
    @sgl.function
    def p(s):
        s += "a long beginning that all branches share, word for word: " * 20
        forks = s.fork(8)
        forks += lambda i: f"{i}"
        forks += sgl.gen("v")
        forks.join()

    with mock({"v": "ok"}) as backend:
        assert p.run(backend=backend)["v"] == ["ok"] * 8
        assert backend.calls("v").prefilled_once
        assert backend.calls("v").asked_tokens > 7 * backend.calls("v").computed_tokens / 2


def test_b7_a_shared_stop_list_stays_as_it_is():
    stop = ["\n"]

    @sgl.function
    def p(s):
        s += sgl.user("Q") + sgl.assistant(sgl.gen("a", stop=stop))

    for _ in range(3):
        assert p.run(backend=mock({"a": "one\ntwo"}))["a"] == "one"
    assert stop == ["\n"]


def test_b8_an_integer_may_have_a_stop_given_as_a_string():
    @sgl.function
    def p(s):
        s += "n=" + sgl.gen_int("n", stop="\n")

    assert p.run(backend=mock({"n": "42"}))["n"] == 42


def thinking(s):
    s += sgl.separate_reasoning("Answer: " + sgl.gen("a") + "; " + sgl.gen("b"), model_type="qwen3")


THOUGHTS = {"a": ["hm</think>", "one"], "b": ["so</think>", "two"]}


def test_b9_reasoning_is_apart_and_the_text_around_it_stays_once():
    @sgl.function
    def in_a_turn(s):
        with s.assistant():
            thinking(s)

    @sgl.function
    def outside_of_turns(s):
        thinking(s)

    for p in (in_a_turn, outside_of_turns):
        state = p.run(backend=mock(THOUGHTS))
        assert (state["a"], state["a_reasoning_content"]) == ("one", "hm")
        assert (state["b"], state["b_reasoning_content"]) == ("two", "so")
        assert state.text().count("Answer: one; two") == 1
        assert "hm" not in state.text()


def test_b9_reasoning_can_be_read_of_a_streamed_run():
    @sgl.function
    def p(s):
        thinking(s)

    state = p.run(stream=True, backend=mock(THOUGHTS))
    assert "".join(state.text_iter()) == "Answer: one; two"
    assert state["b_reasoning_content"] == "so"


def test_b10_iterating_an_unknown_variable_ends_with_its_name():
    @sgl.function
    def p(s):
        s += "Q" + sgl.gen("a")

    for stream in (False, True):
        state = p.run(stream=stream, backend=mock({"a": "x"}))
        with pytest.raises(UnknownNameError, match="unknown"):
            list(state.text_iter("unknown"))


def test_b10_streaming_leaves_the_event_loop_free():
    held = threading.Event()

    @sgl.function
    def p(s):
        held.wait(SOON_S)  # nothing is appended yet, as while a program does something else
        s += "Q" + sgl.gen("a")

    async def follow():
        state = p.run(stream=True, backend=mock({"a": "x"}))
        reader = asyncio.create_task(collect(state))
        for _ in range(20):
            await asyncio.sleep(0)  # the loop turns while the reader waits
        assert not reader.done()
        held.set()
        return await reader

    async def collect(state):
        return [piece async for piece in state.text_async_iter("a")]

    assert "".join(asyncio.run(follow())) == "x"


def test_b11_an_exception_of_a_streamed_body_is_raised_and_kept():
    @sgl.function
    def p(s):
        s += "Q"
        raise KeyError("mine")

    state = p.run(stream=True, backend=mock())
    with pytest.raises(KeyError, match="mine"):
        list(state.text_iter())
    assert isinstance(state.error(), KeyError)


def test_b12_streamed_pieces_add_up_to_the_text():
    @sgl.function
    def p(s):
        s += "Q:" + sgl.gen("a")

    reply = pieces("Hello", " big", " wide", " world")
    state = p.run(stream=True, backend=mock({"a": [reply]}))
    assert "".join(state.text_iter()) == state.text() == "Q:Hello big wide world"


def test_b16_a_program_inside_another_runs_on_its_backend_with_its_sampling():
    @sgl.function
    def inner(s):
        s += "in" + sgl.gen("a")

    @sgl.function
    def outer(s):
        s += "out " + inner.run()["a"]

    with mock({"a": "x"}) as backend:
        assert outer.run(temperature=0, backend=backend).text() == "out x"
    assert backend.calls("a")[0].sampling.temperature == 0


@pytest.mark.parametrize("use_thread", [True, False])
def test_b17_use_thread_changes_nothing_and_forks_add_no_thread(use_thread):
    @sgl.function
    def p(s):
        before = set(threading.enumerate())
        forks = s.fork(50)
        forks += sgl.gen("v")
        forks.join()
        assert len(s["v"]) == 50
        s["added"] = len(set(threading.enumerate()) - before)

    assert p.run(use_thread=use_thread, backend=mock({"v": "x"}))["added"] <= 1  # the engine's own


def test_b18_a_parameter_called_like_one_of_run_is_the_programs_own():
    @sgl.function
    def parallel_sample(s, question, n):
        s += question
        forks = s.fork(n)
        forks += sgl.gen("answer", stop="\n")
        forks.join()

    state = parallel_sample.run(question="Q", n=5, backend=mock({"answer": "x"}))
    assert state["answer"] == ["x"] * 5


def test_b19_a_batch_takes_items_from_a_generator():
    @sgl.function
    def p(s, x):
        s += x + sgl.gen("a")

    states = p.run_batch(({"x": x} for x in "abc"), backend=mock(lambda call: call.prompt[-1]))
    assert [state["a"] for state in states] == ["a", "b", "c"]


def test_b20_stages_of_forks_compute_each_shared_part_once():
    @sgl.function
    def stages(s):
        s += "common ground. " * 30
        first = s.fork(3)
        first += lambda i: f"view {i}: "
        first += sgl.gen("view")
        first.join()
        s += "together: " + " ".join(s["view"])
        second = s.fork(3)
        second += lambda i: f"step {i}: "
        second += sgl.gen("step")
        second.join()

    with mock({"view": "v", "step": "w"}) as backend:
        assert stages.run(backend=backend)["step"] == ["w"] * 3
        assert backend.calls().prefilled_once
        assert backend.calls("view").max_parallel == 3


def test_b21_importing_the_names_loads_neither_torch_nor_triton():
    code = "import sys, sglang_dsl.sglang; print([m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
