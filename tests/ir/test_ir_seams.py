"""Seams where joint encoding would give other tokens, as explain lists them."""

from __future__ import annotations

import pytest
from word_meter import WordMeter

from sglang_dsl import State, gen, program, select, user
from sglang_dsl.ir.analysis import seams
from sglang_dsl.ir.explain import explain
from sglang_dsl.testing import mock


@program
def pick(s: State, asked: str, choices: tuple[str, ...]):
    s += asked
    s += select("pick", choices)
    return s["pick"]


def test_choice_that_would_merge_with_the_text_before_it_is_named() -> None:
    graph = pick.trace("Answer:", ("yes", " no"))
    assert list(seams(graph, WordMeter())) == ["pick: choice 'yes' is read as Answer:|yes"]


def test_branch_that_begins_inside_a_word_is_named_once_however_many_there_are() -> None:
    @program
    def fan(s: State):
        s += "see http:"
        for i, branch in enumerate(s.fork(4)):
            branch += "//x" if i != 3 else " none"
            branch += gen("v")

    assert list(seams(fan.trace(), WordMeter())) == ["the branch that begins with '//x' is read as http:|//x"]


def test_turns_and_generated_text_are_no_seams_to_list() -> None:
    @program
    def turns(s: State):
        s += user("Name one")
        s += "then:" + gen("a") + "more" + gen("b")

    assert list(seams(turns.trace(), WordMeter())) == []


@pytest.mark.parametrize(("asked", "choice", "listed"), [("value: ", "Paris", True), ("value:", " Paris", False)])
def test_explain_lists_the_tokens_of_a_seam_that_differs(asked: str, choice: str, listed: bool) -> None:
    with mock() as backend:
        text = str(explain(pick.trace(asked, (choice, "x")), backend.meter()))
    assert ("pick: choice 'Paris' is read as [' ', 'Paris'] instead of [' Paris']" in text) is listed
