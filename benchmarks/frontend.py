"""What the frontend itself costs, with an executor that has every value at once and computes nothing.

    python benchmarks/frontend.py
    python benchmarks/frontend.py --install DIR       beside SGLang's own frontend, in an environment made in DIR
    python benchmarks/frontend.py --sglang PYTHON     the same in an environment that has SGLang's wheel already
    python benchmarks/frontend.py ... --check         exit code 1 unless ours is TIMES_BETTER as good in each figure

SGLang's figures come from the same programs on a backend that has every value at once, in its default threaded mode. `--install`
needs a package index; without torch and triton the wheel and what it imports take about 400 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.ir.execution import Event, Meter, Outcome, RunSpec, RunSummary, Usage
from sglang_dsl.ir.nodes import Join, Node
from sglang_dsl.ir.record import RunRecord

CALLS_PER_PROGRAM = 200
TIMES_BETTER = 3.0
RATES = {"programs_per_s"}  # more is better; of all other figures less
SGLANG = "sglang==0.5.23"
IMPORTED_BY_SGLANG = (
    "aiohttp", "msgspec", "numpy", "orjson", "packaging", "pillow", "psutil", "pybase64", "pydantic", "pyzmq", "requests",
    "starlette", "tqdm",
)  # fmt: skip
TEXT = Outcome(value="out", text="out")


class NullRun:
    """Every node is resolved as soon as it is asked for."""

    seed = 0

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._widths: dict[str, int] = {}

    def extend(self, nodes: Sequence[Node]) -> None:
        self._nodes += nodes

    def register(self, key: str, function: Callable[..., Any]) -> None:
        pass

    def await_on(self, loop: object) -> None:
        pass

    def value(self, node_id: str) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        self._widths.update((node.id, len(node.tips)) for node in self._nodes if type(node) is Join)
        self._nodes.clear()
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


def install(folder: Path) -> Path:
    """Make an environment with SGLang's wheel in `folder`, unless it is there. Returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", SGLANG], check=True)
    subprocess.run([*pip, *IMPORTED_BY_SGLANG], check=True)
    return python


def measure_sglang(python: Path) -> dict[str, float]:
    """The figures of `frontend_sglang.py` in another environment."""
    script = Path(__file__).with_name("frontend_sglang.py")
    ended = subprocess.run([python, script], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def ratios(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """How many times better ours is, for each figure that both have."""
    both = [name for name in ours if name in theirs]
    return {n: ours[n] / theirs[n] if n in RATES else theirs[n] / ours[n] for n in both}


def show(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """One line per figure."""
    better = ratios(ours, theirs)
    print(f"{'':<24}{'sglang_dsl':>12}" + (f"{'SGLang':>12}{'ratio':>8}" if theirs else ""))
    for name in {**ours, **theirs}:
        figures = [f"{found[name]:>12.3f}" if name in found else " " * 12 for found in (ours, theirs)]
        print(f"{name:<24}{''.join(figures)}{f'{better[name]:>7.1f}x' if name in better else ''}".rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--install", type=Path, metavar="DIR", help="make an environment with SGLang's wheel in DIR")
    where.add_argument("--sglang", type=Path, metavar="PYTHON", help="an interpreter that has SGLang's wheel")
    parser.add_argument(
        "--check", action="store_true", help=f"fail unless each figure is {TIMES_BETTER:g} times better"
    )
    chosen = parser.parse_args()
    if chosen.check and chosen.install is None and chosen.sglang is None:
        parser.error("--check compares: give --install or --sglang, too")
    python = install(chosen.install) if chosen.install is not None else chosen.sglang
    ours = measure(RunOptions(backend=NullExecutor()))
    theirs = {} if python is None else measure_sglang(python)
    show(ours, theirs)
    missed = [name for name, times in ratios(ours, theirs).items() if times < TIMES_BETTER]
    if chosen.check and (missed or ours["threads_of_fork_2000"]):
        print(f"below the bar: {', '.join(missed) or 'a fork added threads'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
