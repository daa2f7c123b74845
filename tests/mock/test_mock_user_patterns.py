"""A pattern of the user's takes time that grows with the text, and holds up nobody. Cases: 302."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.errors import InvalidValueError, TruncatedError
from sglang_dsl.runtime.backends.mock import MockExecutor, malformed, mock

LIMIT_S = 5.0
LAKE = "the lake is quiet and blue in the morning and grey in the evening."
WORDS = "word " * 12 + "!"
RUNAWAYS: dict[str, dict[str, Any]] = {
    "regex": {"regex": r"([a-z]+ ?)+\."},
    "anyOf": {"schema": {"anyOf": [{"type": "string", "pattern": "^([a-z]+ ?)+$"}, {"type": "integer"}]}},
    "property names": {
        "schema": {
            "type": "object",
            "patternProperties": {"^([a-z]+ ?)+$": {"type": "integer"}},
            "additionalProperties": False,
            "minProperties": 1,
        }
    },
}


@program
def ask(s: State):
    s += "?" + gen("other")
    return s["other"]


def run_beside(backend: MockExecutor, options: dict[str, Any], deadline_s: float | None = LIMIT_S) -> Any:
    """The outcome of a gen on `backend`, and of a second run at the same time that has to end within its limit."""

    @program
    def p(s: State):
        s += "!" + gen("a", **options)
        return s["a"]

    run_options = RunOptions(backend=backend, deadline_s=LIMIT_S)
    running = p.start(options=RunOptions(backend=backend, deadline_s=deadline_s))
    began = time.monotonic()
    assert ask.start(options=run_options).result(LIMIT_S).value == "fine"
    result = running.result(LIMIT_S, raising=False)
    assert time.monotonic() - began < LIMIT_S
    backend.engine.check()
    return result


def test_partial_output_of_a_regex_that_backtracks_is_there_at_once() -> None:
    backend = mock({"a": LAKE, "other": "fine"})
    result = run_beside(backend, {"regex": r"([a-z]+ ?)+\.", "max_tokens": 12, "partial_ok": True})
    assert LAKE.startswith(result.value)
    assert len(result.value) > 10


@pytest.mark.parametrize("length", [28, 3000])
def test_output_that_just_misses_its_regex_is_refused_at_once(length: int) -> None:
    backend = mock({"a": malformed("a" * length), "other": "fine"})
    result = run_beside(backend, {"regex": "(a+)+b", "max_tokens": None})
    assert isinstance(result.error, InvalidValueError)
    assert "it does not match (a+)+b" in str(result.error)


def test_output_cut_off_inside_its_regex_is_truncated_at_once() -> None:
    backend = mock({"a": "a" * 40 + "b", "other": "fine"})
    result = run_beside(backend, {"regex": "(a+)+b", "max_tokens": 5})
    assert isinstance(result.error, (TruncatedError, type(None)))


@pytest.mark.parametrize("kind", RUNAWAYS)
def test_output_that_just_misses_a_pattern_is_refused_at_once(kind: str) -> None:
    import json

    text = WORDS if kind == "regex" else json.dumps(WORDS) if kind == "anyOf" else json.dumps({WORDS: 1})
    backend = mock({"a": malformed(text), "other": "fine"})
    result = run_beside(backend, RUNAWAYS[kind])
    assert isinstance(result.error, InvalidValueError)


def test_output_that_fits_its_pattern_is_taken() -> None:
    for options, text in [
        (RUNAWAYS["regex"], LAKE),
        (RUNAWAYS["anyOf"], '"a quiet lake"'),
        (RUNAWAYS["property names"], '{"a quiet lake": 1}'),
    ]:
        result = run_beside(mock({"a": text, "other": "fine"}), options)
        assert result.error is None
        assert result.value


def test_large_output_is_read_off_the_engines_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_dsl.runtime.interpret import answers

    readers: list[str] = []
    parsed = answers._parsed

    def noting(*args: Any) -> Any:
        readers.append(threading.current_thread().name)
        return parsed(*args)

    monkeypatch.setattr(answers, "_parsed", noting)
    text = "[" + ",".join(["1"] * 2_500) + "]"
    backend = mock({"a": malformed(text), "other": "fine"})
    result = run_beside(
        backend, {"schema": {"type": "array", "items": {"type": "integer"}}, "max_tokens": 8_000}, deadline_s=None
    )
    assert result.error is None
    assert len(result.value) == 2_500
    assert readers
    assert not [name for name in readers if "engine" in name]
