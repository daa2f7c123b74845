"""A blank before a choice belongs to the choice; both bad forms are told, at run time and by explain (cases: 312)."""

from __future__ import annotations

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import mock

FORMS = [
    ("Kind:", [" a", " b"], ""),
    ("Kind", [" a", " b"], ""),
    ("Kind: ", ["a", "b"], ""),
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
    assert ("no blank stands between" in flat, "choices begin with one" in flat) == (
        "no blank" in said,
        "begin with one" in said,
    )
