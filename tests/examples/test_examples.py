"""Every example on the mock: its values, its calls, its graph."""

from __future__ import annotations

import json

import pytest

from examples import demo
from examples.chat import QUESTIONS, chat
from examples.few_shot_select import KINDS, MESSAGES, classify
from examples.support_agent import report, triage
from examples.support_desk import Answer, preamble, tickets
from examples.tree_of_thought import LENSES, PROBLEM, summary
from sglang_dsl import RunOptions
from sglang_dsl.errors import DownloadError
from sglang_dsl.testing import mock

REPLY = {
    "tool": "find_booking",
    "urgency": 3,
    "summary": "Deposit missing.",
    "reply": "I am looking at it.",
    "needs_person": False,
}


def test_support_agent_on_forty_tickets_gives_forty_typed_answers(tmp_path) -> None:
    backend = mock({"answer": [json.dumps(REPLY)]}, policy="last")
    result = triage.run(tickets(40), options=RunOptions(backend=backend))
    assert result.value == [Answer.model_validate(REPLY)] * 40
    assert backend.calls("answer").count == 40
    assert "40 of 40" in report(result, 1.0, tmp_path / "picture.html")


def test_support_agent_preamble_is_computed_once() -> None:
    backend = mock({"answer": [json.dumps(REPLY)]}, policy="last")
    usage = triage.run(tickets(40), options=RunOptions(backend=backend)).usage
    one = triage.run(tickets(1), 1, options=RunOptions(backend=backend)).usage
    assert usage.asked_tokens > 39 * one.computed_tokens * 0.9
    assert usage.computed_tokens < 2 * one.computed_tokens


def test_support_agent_answer_outside_the_schema_is_never_returned() -> None:
    backend = mock({"answer": [json.dumps({**REPLY, "urgency": 9})]}, policy="last")
    with pytest.raises(Exception, match=r"urgency|9"):
        triage.run(tickets(2), options=RunOptions(backend=backend))


def test_tree_of_thought_goes_on_from_the_picked_proposal() -> None:
    backend = mock(
        {"thought": [f" take sledge {i}\n" for i in range(8)], "pick": ["1", "3"], "plan": ["Go at dawn."]},
    )
    result = summary.run(PROBLEM, options=RunOptions(backend=backend))
    assert result.value == "take sledge 0 / take sledge 6 => Go at dawn."
    assert backend.calls("thought").count == 2 * len(LENSES)
    assert "\nStep 1: first we take sledge 0\nStep 2, the fastest way:" in backend.calls("thought")[4].prompt


def test_few_shot_select_returns_one_kind_per_message() -> None:
    backend = mock(scores=lambda call, choice: -float(len(choice)))
    result = classify.run(list(MESSAGES), options=RunOptions(backend=backend))
    assert len(result.value) == len(MESSAGES)
    assert set(result.value) <= set(KINDS)


def test_chat_of_three_turns_reuses_every_turn_before() -> None:
    backend = mock({"reply": ["A tent.", "A tarp.", "Tent and tarp."]})
    result = chat.run(list(QUESTIONS), options=RunOptions(backend=backend))
    assert result.value == ["A tent.", "A tarp.", "Tent and tarp."]
    roles = [message["role"] for message in result.state.messages()]
    assert roles == ["system", *["user", "assistant"] * 3]
    assert result.usage.reused_tokens > 0


@pytest.mark.parametrize(
    ("traced", "arguments"),
    [(triage, (tickets(40),)), (classify, (list(MESSAGES),)), (chat, (list(QUESTIONS),)), (summary, (PROBLEM,))],
    ids=["support_agent", "few_shot_select", "chat", "tree_of_thought"],
)
def test_trace_of_an_example_needs_no_model(traced, arguments) -> None:
    graph = traced.trace(*arguments)
    kinds = {node.kind for node in graph}
    assert kinds & {"gen", "select"}


def test_preamble_of_another_session_differs_in_its_first_line_only() -> None:
    first, second = preamble(0).split("\n"), preamble(1).split("\n")
    assert first[0] != second[0]
    assert first[1:] == second[1:]


def test_demo_ideal_is_the_tree_of_all_prompts_and_cannot_be_beaten() -> None:
    backend = mock({"answer": [json.dumps(REPLY)]}, policy="last")
    result = triage.run(tickets(40), options=RunOptions(backend=backend))
    prompts = [tuple(call.request.prompt_ids) for call in backend.calls("answer")]
    prefixes = {prompt[:n] for prompt in prompts for n in range(1, len(prompt) + 1)}
    least = demo.distinct_tokens(result.graph, backend.meter())
    assert least == len(prefixes)
    assert least <= result.usage.computed_tokens <= demo.MOST_OVER_IDEAL * least


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [(KeyboardInterrupt(), 130, "stopped"), (DownloadError("no network"), 2, "no network")],
    ids=["ctrl-c", "no network"],
)
def test_demo_that_cannot_go_on_says_so_in_a_line(raised, code, said, monkeypatch, capsys) -> None:
    def fail(name: str) -> None:
        raise raised

    monkeypatch.setattr(demo, "resolve", fail)
    assert demo.main() == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
