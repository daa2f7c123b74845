"""Programs of the kinds that people wrote for SGLang, moved by one import."""

from __future__ import annotations

import json

import sglang_dsl.sglang as sgl
from sglang_dsl.testing import mock


def test_few_shot_answers_in_a_batch_stop_at_the_next_question() -> None:
    @sgl.function
    def few_shot(s, question):
        s += "Q: 1 + 1\nA: 2\n\n"
        s += "Q: " + question + "\nA:" + sgl.gen("answer", max_tokens=16, stop="\n\nQ:")

    backend = mock(lambda call: " 9\n\nQ: more" if "4 + 5" in call.prompt else " 7\n\nQ: more")
    states = few_shot.run_batch([{"question": "4 + 5"}, {"question": "3 + 4"}], temperature=0, backend=backend)
    assert [state["answer"] for state in states] == [" 9", " 7"]
    assert backend.calls().prefilled_once


def test_character_sheet_by_regex_is_json() -> None:
    regex = r'\{"name": "[\w ]{1,16}", "age": [0-9]{1,3}\}'

    @sgl.function
    def sheet(s, name):
        s += name + " in JSON: " + sgl.gen("json", max_tokens=64, regex=regex)

    state = sheet.run(name="Ana", backend=mock({"json": '{"name": "Ana", "age": 41}'}))
    assert json.loads(state["json"]) == {"name": "Ana", "age": 41}


def test_tips_are_expanded_in_forks_and_summed_up() -> None:
    @sgl.function
    def expand(s, tip):
        s += "Expand: " + tip + "\n" + sgl.gen("detail", max_tokens=64)

    @sgl.function
    def tips(s, topic):
        s += "Two tips for " + topic + ".\n"
        states = [expand.run(tip=tip) for tip in ("sleep", "water")]
        s += "".join(f"Tip {i + 1}: {state['detail']}\n" for i, state in enumerate(states))
        s += "In summary: " + sgl.gen("summary")

    state = tips.run(topic="health", backend=mock({"detail": ["8 h", "2 l"], "summary": "rest and drink"}))
    assert state.text() == "Two tips for health.\nTip 1: 8 h\nTip 2: 2 l\nIn summary: rest and drink"


def test_judge_of_several_dimensions_grades_from_its_branches() -> None:
    @sgl.function
    def judge(s, essay):
        s += "Essay: " + essay + "\n"
        forks = s.fork(3)
        for fork, dimension in zip(forks, ["clarity", "style", "truth"], strict=True):
            fork += "On " + dimension + ":" + sgl.gen("judgment", max_tokens=32, stop="END")
        forks.join()
        s += "Judgments: " + "; ".join(s["judgment"]) + "\nGrade: "
        s += sgl.gen("grade", choices=["A", "B", "C"])

    backend = mock({"judgment": ["clear END", "dry END", "true END"], "grade": "B"})
    state = judge.run(essay="x " * 40, backend=backend)
    assert state["grade"] == "B"
    assert "clear ; dry ; true " in state.text()
    assert backend.calls("judgment").max_parallel == 3


def test_agent_loop_reads_actions_and_stops() -> None:
    seen = []

    @sgl.function
    def react(s, question):
        s += "Question: " + question + "\n"
        for i in range(1, 5):
            s += f"Thought {i}:" + sgl.gen("thought", stop="\n") + "\n"
            s += f"Action {i}:" + sgl.gen("action", stop="\n") + "\n"
            seen.append(s["action"].strip())
            if s["action"].strip().startswith("finish"):
                break
            s += f"Observation {i}: nothing\n"

    script = {"thought": [" look\n", " enough\n"], "action": [" search[x]\n", " finish[y]\n"]}
    state = react.run(question="?", backend=mock(script))
    assert seen == ["search[x]", "finish[y]"]
    assert state.text().count("Observation") == 1


def test_tree_of_forks_in_forks_gathers_a_list_of_lists() -> None:
    @sgl.function
    def tree(s):
        s += "root "
        outer = s.fork(2)
        for fork in outer:
            fork += sgl.gen("thought")
            inner = fork.fork(2)
            inner += sgl.gen("step")
            inner.join()
        outer.join()
        s += " ".join(step for steps in s["step"] for step in steps)

    state = tree.run(backend=mock({"thought": ["a", "b"], "step": ["1", "2", "3", "4"]}))
    assert state["thought"] == ["a", "b"]
    assert state["step"] == [["1", "2"], ["3", "4"]]
    assert state.text() == "root 1 2 3 4"


def test_chat_streams_each_answer_and_keeps_the_conversation() -> None:
    @sgl.function
    def chat(s, first, second):
        s += sgl.system("Be kind.")
        for i, question in enumerate((first, second)):
            s += sgl.user(question)
            s += sgl.assistant(sgl.gen(f"answer_{i}", max_tokens=16))

    backend = mock({"answer_0": "Hello there.", "answer_1": "Goodbye."})
    state = chat.run(first="Hi", second="Bye", stream=True, backend=backend)
    assert "".join(state.text_iter("answer_1")) == "Goodbye."
    assert [message["role"] for message in state.messages()] == ["system", *["user", "assistant"] * 2]
    assert backend.calls().prefilled_once
