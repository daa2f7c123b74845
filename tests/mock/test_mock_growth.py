"""Time per node is constant: twice the program makes about twice the function calls, counted and not timed, in all threads."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, assistant, gen, program, user
from sglang_dsl.runtime.text.jinja_template import JinjaTemplate
from sglang_dsl.testing import mock

MOST = 2.4  # times the calls, for twice the size: threads meet at other moments each time
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@program
def chain(s: State, n: int) -> None:
    for i in range(n):
        s += f"Q {i}: " + gen("a", max_tokens=8)
        s["a"]


@program
def text_read(s: State, n: int) -> None:
    for i in range(n):
        s += f"Q {i}: " + gen("a", max_tokens=8)
        assert s.text.endswith("ok")


@program
def fork_rounds(s: State, n: int) -> None:
    for i in range(n):
        branches = s.fork(2)
        branches += f"option {i} " + gen(f"tip{i}", max_tokens=8)
        assert list(branches.join(f"tip{i}")) == ["ok", "ok"]
        s += "then " + gen("a", max_tokens=8)
        s["a"]


@program
def turns(s: State, n: int) -> None:
    for i in range(n):
        s += user(f"question {i}")
        s += assistant(gen("a", max_tokens=8))
        s["a"]


@program
def nested(s: State, n: int) -> None:
    at = s
    for i in range(n):
        branches = at.fork(2)
        branches += "deeper " + gen(f"d{i}", max_tokens=8)
        at = branches[0]
        at[f"d{i}"]


def wide(mode: Any) -> Any:
    @program
    def wide_fork(s: State, n: int) -> None:
        s += "begin "
        branches = s.fork(n)
        branches += "tip " + gen("tip", max_tokens=8)
        branches.join(
            "tip",
            mode=mode,
            k=n // 2 if mode in ("first", "quorum") else None,
            key=len if mode == "best" else None,
        )

    return wide_fork


def calls(work: Callable[[], object]) -> int:
    """The fewer of two trials' function calls."""
    return min(_calls(work), _calls(work))


def _calls(work: Callable[[], object]) -> int:
    """Function calls, those of C included, in this thread and those that it starts."""
    count: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        count[event] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return count["call"] + count["c_call"]


def run(prog: Any, n: int, template: str | None = None) -> None:
    with mock(
        lambda call: "ok",
        context_tokens=1 << 20,
        template=None if template is None else JinjaTemplate(template),
    ) as backend:
        prog.run(n, options=RunOptions(backend=backend))


@pytest.mark.parametrize(
    ("prog", "n"),
    [(chain, 100), (text_read, 100), (fork_rounds, 50), (turns, 80), (nested, 60)],
    ids=lambda value: getattr(value, "name", value),
)
def test_growth_of_a_program_twice_as_long_makes_twice_the_calls(prog: Any, n: int) -> None:
    run(prog, 4)
    assert calls(lambda: run(prog, 2 * n)) <= MOST * calls(lambda: run(prog, n))


@pytest.mark.parametrize("mode", ["all", "settle", "first", "quorum", "vote", "best", "concat"])
def test_growth_of_a_fork_twice_as_wide_makes_twice_the_calls(mode: str) -> None:
    prog = wide(mode)
    run(prog, 4)
    assert calls(lambda: run(prog, 200)) <= MOST * calls(lambda: run(prog, 100))


def test_growth_of_turns_under_a_jinja_template_makes_twice_the_calls() -> None:
    run(turns, 4, CHATML)
    assert calls(lambda: run(turns, 320, CHATML)) <= MOST * calls(lambda: run(turns, 160, CHATML))


def test_growth_of_node_ids_with_the_depth_of_forks_is_bounded() -> None:
    """cases: 706"""

    @program
    def deep(s: State, n: int) -> None:
        at = s
        for _ in range(n):
            at = at.fork(1)[0]
            at += "deeper "

    with mock(lambda call: "ok") as backend:
        graph = deep.run(2000, options=RunOptions(backend=backend)).graph
        again = deep.run(2000, options=RunOptions(backend=backend)).graph
    ids = [node.id for node in graph]
    assert len(set(ids)) == len(ids) == 4000
    assert max(map(len, ids)) < 120
    assert ids == [node.id for node in again]
    assert ids[2].endswith("[0]"), "as ever where it is not deep"
    assert ids[4].endswith("[0,0]"), "as ever where it is not deep"
