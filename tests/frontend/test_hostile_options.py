"""Options of calls whose values have a mind of their own, or are far too large, are refused by name (cases: 702)."""

from __future__ import annotations

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.errors import DslError, ForkError, SpecError
from sglang_dsl.ir.specs import MOST_BRANCHES, RunOptions
from sglang_dsl.testing import mock


class Evil:
    """Cannot be shown, compared or hashed."""

    __hash__ = None

    def __repr__(self):
        raise ValueError("evil")

    def __eq__(self, other):
        raise ValueError("evil")


class EvilText(str):
    """Text whose own methods raise."""

    __slots__ = ()

    def __len__(self):
        raise ValueError("evil")

    def __repr__(self):
        raise ValueError("evil")


OPTIONS = [
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_regex",
    "stop_token_ids",
    "logit_bias",
    "seed",
    "logprobs",
    "n",
    "retries",
    "timeout_s",
    "min_tokens",
    "model",
    "regex",
    "choices",
    "ignore_eos",
    "include_stop",
    "frequency_penalty",
    "repetition_penalty",
    "reasoning",
    "validate",
    "partial_ok",
    "heal",
]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_value_that_cannot_be_shown_is_refused_as_any_other(option):
    with pytest.raises(DslError, match=r"Evil|wrong kind"):
        gen("a", **{option: Evil()})


@pytest.mark.parametrize(
    "make",
    [
        lambda v: gen(v),
        lambda v: select("a", v),
        lambda v: select("a", ["x", "y"], method=v),
        lambda v: select("a", [v, "b"]),
    ],
)
def test_names_choices_and_methods_likewise(make):
    with pytest.raises(DslError):
        make(Evil())


def test_a_backend_that_cannot_be_shown_is_refused():
    @program
    def ask(s):
        s += gen("a")

    with pytest.raises(DslError, match="is not a backend"):
        ask.run(options=RunOptions(backend=Evil()))


def test_stops_of_a_kind_of_text_are_taken_as_text():
    @program
    def ask(s):
        s += gen("a", stop=[EvilText("it")])
        return s["a"]

    with mock({"a": "yes it is"}) as backend:
        assert ask.run(options=RunOptions(backend=backend)).value == "yes "


@pytest.mark.parametrize("count", [MOST_BRANCHES + 1, 10**9, 10**5000], ids=["one more", "billion", "huge"])
def test_far_too_many_branches_are_refused_at_once(count):
    with pytest.raises(SpecError, match="is more than 65,536"):
        gen("a", n=count)

    @program
    def split(s):
        s.fork(count)

    with mock({}) as backend, pytest.raises(ForkError, match="at most 65,536 branches"):
        split.run(options=RunOptions(backend=backend))
