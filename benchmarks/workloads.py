"""W1 support fan-out, W2 the same as JSON, W4 select, W5 tree of thought, W6 chats: on the embedded engine.

    python -m benchmarks.workloads                        this project's inputs
    python -m benchmarks.workloads --files rep0.json      inputs from workload files
    python -m benchmarks.workloads --only W1 W2 --check   exit 1 where a bar is missed

Greedy; the end-of-sequence token is ignored where the output is free, so that token counts are equal between runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from jsonschema import Draft202012Validator

from benchmarks.workload_data import Chats, FanOut, Quiz, Tree, Workloads, build, read
from sglang_dsl import Result, RunOptions, State, gen, program, raw, select


@program
def fan_out(s: State, work: FanOut) -> list[str]:
    s += raw(work.prefix)
    answer = gen("answer", max_tokens=work.max_new, temperature=0, ignore_eos=True)
    calls = s.fork(len(work.suffixes))
    for call, suffix in zip(calls, work.suffixes, strict=True):
        call += raw(suffix)
        call += answer
    return calls.join(answer)


@program
def fan_out_json(s: State, work: FanOut, schema: dict[str, Any]) -> list[Any]:
    s += raw(work.prefix)
    answer = gen("answer", schema=schema, max_tokens=work.max_new, temperature=0)
    calls = s.fork(len(work.suffixes))
    for call, suffix in zip(calls, work.suffixes, strict=True):
        call += raw(suffix)
        call += answer
    return calls.join(answer, mode="settle")


@program
def quiz(s: State, work: Quiz) -> list[str]:
    s += work.prefix
    branches = s.fork(len(work.questions))
    for branch, question in zip(branches, work.questions, strict=True):
        branch += question.suffix
        branch += select("pick", question.choices)
    return branches.join("pick")


@program
def tree(s: State, work: Tree) -> int:
    s += raw(work.root)
    level = [s]
    thought = gen("thought", max_tokens=work.max_new, temperature=0, ignore_eos=True)
    for lenses in work.levels:
        below: list[State] = []
        for node in level:
            branches = node.fork(len(lenses))
            for branch, lens in zip(branches, lenses, strict=True):
                branch += lens
                branch += thought
                below.append(branch)
        level = below
    return len(level)


@program
def chats(s: State, work: Chats) -> int:
    s += raw(work.system)
    branches = s.fork(len(work.users))
    for turns in zip(*work.users, strict=True):
        for branch, user in zip(branches, turns, strict=True):
            branch += raw(user)
            branch += gen("reply", max_tokens=work.max_new, temperature=0, ignore_eos=True)
            branch += raw(work.end)
    return len(branches)


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload's figures. `note` says what was checked about the output; `ok` whether it held."""

    name: str
    result: Result[Any]
    wall_s: float
    note: str
    ok: bool


def measure(name: str, run: Callable[[], Result[Any]], judge: Callable[[Any], tuple[str, bool]]) -> Measured:
    began = time.perf_counter()
    result = run()
    wall_s = time.perf_counter() - began
    return Measured(name, result, wall_s, *judge(result.value))


def valid_json(schema: dict[str, Any]) -> Callable[[list[Any]], tuple[str, bool]]:
    validator = Draft202012Validator(schema)

    def judge(values: list[Any]) -> tuple[str, bool]:
        valid = sum(validator.is_valid(value) for value in values)
        return f"{valid}/{len(values)} valid", valid == len(values)

    return judge


def accuracy(work: Quiz) -> Callable[[list[str]], tuple[str, bool]]:
    def judge(picks: list[str]) -> tuple[str, bool]:
        right = sum(p == q.choices[q.answer] for p, q in zip(picks, work.questions, strict=True))
        return f"{right}/{len(picks)} right", len(picks) == len(work.questions)

    return judge


def count(expected: int) -> Callable[[Any], tuple[str, bool]]:
    def judge(value: Any) -> tuple[str, bool]:
        got = len(value) if isinstance(value, list) else value
        return f"{got} outputs", got == expected

    return judge


def plan(work: Workloads, options: RunOptions) -> dict[str, Callable[[], Measured]]:
    w2_size = len(work.w2.suffixes)
    leaves = len(work.w5.levels[0]) ** len(work.w5.levels)
    return {
        "W1": lambda: measure("W1", lambda: fan_out.run(work.w1, options=options), count(len(work.w1.suffixes))),
        "W2": lambda: measure(
            "W2",
            lambda: fan_out_json.run(work.w2, work.w2_schema, options=options),
            valid_json(work.w2_schema) if w2_size else count(0),
        ),
        "W4": lambda: measure("W4", lambda: quiz.run(work.w4, options=options), accuracy(work.w4)),
        "W5": lambda: measure("W5", lambda: tree.run(work.w5, options=options), count(leaves)),
        "W6": lambda: measure("W6", lambda: chats.run(work.w6, options=options), count(len(work.w6.users))),
    }


def table(rows: list[Measured]) -> str:
    rss_mb = psutil.Process().memory_info().rss / 2**20
    lines = [
        f"{'':4}{'asked':>10}{'computed':>10}{'reused':>10}{'generated':>10}{'wall s':>9}{'tok/s':>8}{'KV pages':>10}  checked"
    ]
    for row in rows:
        u = row.result.usage
        lines.append(
            f"{row.name:4}{u.asked_tokens:>10,}{u.computed_tokens:>10,}{u.reused_tokens:>10,}{u.generated_tokens:>10,}"
            f"{row.wall_s:>9.1f}{u.generated_tokens / row.wall_s:>8.0f}{u.peak_kv_pages:>10,}  {row.note}"
        )
    return "\n".join([*lines, f"RSS {rss_mb:,.0f} MB"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--files", type=Path, nargs="*", default=[], help="workload files; default: this project's inputs"
    )
    parser.add_argument("--only", nargs="*", default=["W1", "W2", "W4", "W5", "W6"])
    parser.add_argument("--backend", default="local:smollm2")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()

    sources = [read(path) for path in chosen.files] or [build(0)]
    options = RunOptions(backend=chosen.backend, seed=0)
    rows = [plan(work, options)[name]() for work in sources for name in chosen.only]
    print(table(rows))
    if chosen.json:
        figures = [{"name": r.name, "wall_s": r.wall_s, "note": r.note} for r in rows]
        chosen.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    missed = [f"{r.name}: {r.note}" for r in rows if not r.ok]
    for line in missed if chosen.check else ():
        print(f"missed: {line}")
    return 1 if chosen.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
