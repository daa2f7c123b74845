"""What the frontend itself costs, with an executor that has every value at once and computes nothing.

    python benchmarks/frontend.py
    python benchmarks/frontend.py --sglang PYTHON     also SGLang's own frontend, in the environment of PYTHON

SGLang's figures come from the same programs on its stub backend, in its default threaded mode; `--sglang` names the
interpreter of an environment that has its wheel (`pip install --no-deps sglang==0.5.23` and what it imports).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.ir.execution import Event, Meter, Outcome, RunSpec, RunSummary, Usage
from sglang_dsl.ir.nodes import Join, Node
from sglang_dsl.ir.record import RunRecord

CALLS_PER_PROGRAM = 200
TEXT = Outcome(value="out", text="out")


class NullRun:
    """Every node is resolved as soon as it is asked for."""

    seed = 0

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def extend(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if type(node) is Join:
                self._widths[node.id] = len(node.tips)

    def register(self, key: str, function: Callable[..., Any]) -> None:
        pass

    def value(self, node_id: str) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        width = self._widths.get(node_id)
        future.set_result(TEXT if width is None else Outcome(value=["out"] * width))
        return future

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        pass

    def seal(self) -> Future[RunSummary]:
        future: Future[RunSummary] = Future()
        future.set_result(RunSummary(usage=Usage(), seed=0))
        return future

    def record(self) -> RunRecord:
        return RunRecord()

    def events(self) -> Iterator[Event]:
        return iter(())

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        return lambda: None


class NullExecutor:
    """An Executor without a runtime."""

    name = "null"

    def open(self, spec: RunSpec) -> NullRun:
        return NullRun()

    def meter(self) -> Meter:
        raise NotImplementedError

    def close(self) -> None:
        pass


@program
def many_calls(s: State, calls: int) -> str:
    for _ in range(calls):
        s += "Q: " + gen("a", max_tokens=8, stop="\n")
    return s["a"]


@program
def many_reads(s: State, calls: int) -> str:
    for _ in range(calls):
        s += "Q: " + gen("a", max_tokens=8, stop="\n")
        last = s["a"]
    return last


@program
def one_call(s: State) -> str:
    s += "Q: " + gen("a", max_tokens=8)
    return s["a"]


@program
def fork_of_eight(s: State, rounds: int) -> list[str]:
    for _ in range(rounds):
        s += "text "
        branches = s.fork(8)
        for i, branch in enumerate(branches):
            branch += f"tip {i}: "
            branch += gen("tip", max_tokens=8)
        branches.join("tip")
    return s["tip"]


def measure(options: RunOptions) -> dict[str, float]:
    """Best of twenty of each figure, each in a few milliseconds so that a busy machine disturbs few of them; seconds per unit of work, and programs per second."""
    return {
        "call_ms": 1e3 * best(lambda: many_calls.run(CALLS_PER_PROGRAM, options=options)) / CALLS_PER_PROGRAM,
        "call_and_read_ms": 1e3 * best(lambda: many_reads.run(CALLS_PER_PROGRAM, options=options)) / CALLS_PER_PROGRAM,
        "fork8_join_ms": 1e3 * best(lambda: fork_of_eight.run(20, options=options)) / 20,
        "programs_per_s": 50 / best(lambda: [one_call.run(options=options) for _ in range(50)]),
        "threads_of_fork_2000": float(threads_of_wide_fork(options)),
    }


def best(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def threads_of_wide_fork(options: RunOptions) -> int:
    """Threads that appear while 2,000 branches are alive."""
    seen = []

    @program
    def wide(s: State) -> None:
        before = threading.active_count()
        branches = s.fork(2000)
        branches += gen("v", max_tokens=1)
        seen.append(threading.active_count() - before)
        branches.join("v")

    wide.run(options=options)
    return seen[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sglang", type=Path, metavar="PYTHON", help="interpreter of an environment with SGLang's wheel"
    )
    chosen = parser.parse_args()
    ours = measure(RunOptions(backend=NullExecutor()))
    theirs: dict[str, float] = {}
    if chosen.sglang is not None:
        script = Path(__file__).with_name("frontend_sglang.py")
        ended = subprocess.run([chosen.sglang, script], capture_output=True, text=True, check=True)
        theirs = json.loads(ended.stdout.splitlines()[-1])
    print(f"{'':<24}{'sglang_dsl':>12}" + (f"{'SGLang':>12}{'ratio':>8}" if theirs else ""))
    for name, value in ours.items():
        line = f"{name:<24}{value:>12.3f}"
        if name in theirs:
            ratio = (
                value / theirs[name] if name == "programs_per_s" else theirs[name] / value if value else float("inf")
            )
            line += f"{theirs[name]:>12.3f}{ratio:>7.1f}x"
        print(line)


if __name__ == "__main__":
    main()
