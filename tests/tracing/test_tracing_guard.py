"""What a traced body may not do, and what a trace puts back."""

from __future__ import annotations

import itertools
import os
import random
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from trial_runs import breaks, everything, kinds

from sglang_dsl import State, gen, program, select
from sglang_dsl.errors import TraceError
from sglang_dsl.ir.nodes import Plain, Text


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        (lambda path: (path / "f").write_text("x"), "for writing"),
        (lambda path: open(path / "f", "a"), "for writing"),  # noqa: SIM115
        (lambda path: os.open(path / "f", os.O_CREAT | os.O_WRONLY), "for writing"),
        (lambda path: (path / "d").mkdir(), "file system"),
        (lambda path: os.remove(path / "there"), "file system"),
        (lambda path: (path / "there").rename(path / "f"), "file system"),
        (lambda path: socket.socket(), "socket"),
        (lambda path: socket.create_connection(("127.0.0.1", 9)), "socket"),
        (lambda path: subprocess.run(["true"]), "process"),
        (lambda path: os.system("true"), "process"),
        (lambda path: input(), "input"),
        (lambda path: os.putenv("A", "b"), "environment"),
    ],
)
def test_effect_in_a_traced_body_is_a_break_and_does_not_happen(effect, reason, tmp_path) -> None:
    (tmp_path / "there").write_text("x")

    @program
    def p(s: State):
        s += "a"
        effect(tmp_path)
        s += "b"

    graph = p.trace()
    assert kinds(graph) == ["text", "break"]
    (end,) = breaks(graph)
    assert reason in end.reason
    assert sorted(os.listdir(tmp_path)) == ["there"]
    with pytest.raises(TraceError, match=reason):
        p.trace(strict=True)


def test_reading_a_file_is_allowed(tmp_path) -> None:
    (tmp_path / "f").write_text("content")

    @program
    def p(s: State):
        s += (tmp_path / "f").read_text()
        import colorsys  # noqa: F401  an import may write its cache

    assert kinds(p.trace()) == ["text"]


def test_guard_stands_only_while_tracing_and_only_in_this_thread(tmp_path) -> None:
    entered, leave = threading.Event(), threading.Event()

    @program
    def p(s: State):
        entered.set()
        assert leave.wait(10)
        s += "x"

    thread = threading.Thread(target=p.trace)
    thread.start()
    assert entered.wait(10)
    (tmp_path / "f").write_text("while the other thread traces")
    leave.set()
    thread.join()
    (tmp_path / "f").write_text("after")
    assert (tmp_path / "f").read_text() == "after"


def test_random_state_is_the_same_for_every_path_and_after() -> None:
    seen = []

    @program
    def p(s: State):
        s += f"{random.random()} {np.random.rand()}"
        seen.append(random.random())
        s += select("k", ["a", "b"])
        s += "x" if s["k"] == "a" else "y"

    random.seed(7)
    np.random.seed(7)
    expected = random.Random(7).random()
    graph = p.trace()
    assert breaks(graph) == []
    assert seen[0] == seen[1]
    assert random.random() == expected


def test_body_that_counts_its_runs_breaks() -> None:
    count = itertools.count()

    @program
    def p(s: State):
        s += f"run {next(count)}"
        s += select("k", ["a", "b"])
        s += "x" if s["k"] == "a" else "y"

    (end,) = breaks(p.trace())
    assert "something else when it was run again" in end.reason


def test_body_that_reads_the_clock_breaks() -> None:
    @program
    def p(s: State):
        s += f"{time.perf_counter_ns()}"
        s += select("k", ["a", "b"])
        s += "x" if s["k"] == "a" else "y"

    assert len(breaks(p.trace())) == 1


def test_arguments_are_fresh_for_every_path_and_the_callers_stay() -> None:
    given = {"items": ["a", "b"]}

    @program
    def p(s: State, things: dict):
        s += ",".join(things["items"])
        things["items"].pop()
        s += select("k", ["a", "b"])
        s += "x" if s["k"] == "a" else "y"

    graph = p.trace(given)
    assert breaks(graph) == []
    assert given == {"items": ["a", "b"]}
    first = next(n for n in graph if isinstance(n, Text))
    assert first.pieces == (Plain("a,b"),)


def test_bound_arguments_are_fresh_too() -> None:
    given: list[str] = ["a"]

    @program
    def p(s: State, things: list):
        things.append("b")
        s += f"{len(things)}" + select("k", ["a", "b"])
        s += "x" if s["k"] == "a" else "y"

    assert breaks(p.bind(things=given).trace()) == []
    assert given == ["a"]


def test_argument_that_cannot_be_copied_is_refused_by_name() -> None:
    @program
    def p(s: State, lock: object):
        s += "x"

    with pytest.raises(TraceError, match="lock"):
        p.trace(threading.Lock())


def test_tools_and_validators_are_not_run() -> None:
    def refuse(value: str) -> bool:
        raise AssertionError("a validator is not run while tracing")

    @program
    def p(s: State):
        s += gen("v", validate=refuse, retries=1)
        s.cancel()

    (end,) = breaks(p.trace())
    assert "cancelled" in end.reason
    assert [n.kind for n in everything(p.trace())] == ["gen", "break"]
    assert Path(end.origin.file).name == "test_tracing_guard.py"
