"""A blank before a choice belongs to the choice; both bad forms are told, at run time and by explain (cases: 312)."""

from __future__ import annotations

import warnings

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.errors import ChoiceBlankWarning
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import mock

FORMS = [
    ("Kind:", [" a", " b"], ""),
    ("Kind", [" a", " b"], ""),
    ("Kind: ", ["a", "b"], "begin each choice with it"),
    ("Kind:\n    ", ["a", "b"], ""),
    ("Kind: ", ["\na", "\nb"], ""),
    ("Kind:\n", ["a", "b"], ""),
    ('"kind": "', ["a", "b"], ""),
    ("Kind:", ["a", "b"], "no blank stands between"),
    ("Kind", ["a", "b"], "no blank stands between"),
    ("Kind: ", [" a", " b"], "ends with a blank and the choices begin with one"),
]


@program
def by_select(s, before, choices):
    s += before
    s += select("x", choices)


@program
def by_gen(s, before, choices):
    s += before
    s += gen("x", choices=choices)


@pytest.mark.parametrize(("before", "choices", "said"), FORMS)
@pytest.mark.parametrize("asks", [by_select, by_gen])
def test_blanks_before_choices_are_told(asks, before, choices, said):
    with mock({"x": choices[0]}) as backend:
        options = RunOptions(backend=backend)
        findings = asks.run(before, choices, options=options).state.meta("x").findings
        explained = str(asks.explain(before, choices, options=options))
    assert bool(findings) == bool(said)
    assert all(said in finding for finding in findings)
    flat = " ".join(explained.split())
    told = {
        form: form in flat
        for form in ("no blank stands between", "choices begin with one", "begin each choice with it")
    }
    assert told == {form: form in said for form in told}


@pytest.mark.filterwarnings("default::sglang_dsl.errors.ChoiceBlankWarning")
@pytest.mark.parametrize(("before", "choices", "said"), FORMS)
def test_a_bad_form_warns_once_per_line(before, choices, said):
    def body(s):
        for _ in range(3):
            s += before
            s += select("x", choices)
        s += before
        s += gen("x", choices=choices)

    with mock({"x": choices[0]}) as backend, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", ChoiceBlankWarning)
        program(body).run(options=RunOptions(backend=backend))
        program(body).explain(options=RunOptions(backend=backend))
    found = [w for w in caught if w.category is ChoiceBlankWarning]
    lines = [body.__code__.co_firstlineno + 3, body.__code__.co_firstlineno + 5] if said else []
    assert [w.lineno for w in found] == lines
    assert all(said in str(w.message) and w.filename == __file__ for w in found)


def test_a_warning_made_an_error_is_raised_at_the_line_and_can_be_switched_off():
    with mock({"x": "a"}) as backend, warnings.catch_warnings():
        warnings.simplefilter("error", ChoiceBlankWarning)
        with pytest.raises(ChoiceBlankWarning):
            by_select.run("Kind:", ["a", "b"], options=RunOptions(backend=backend))
        warnings.simplefilter("ignore", ChoiceBlankWarning)
        by_select.run("Kind:", ["a", "b"], options=RunOptions(backend=backend))
