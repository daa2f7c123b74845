"""Random programs with forks, joins, selects, loops and nested calls: run, and traced, stored and executed, they ask the same
and give the same.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, assistant, gen, program, select, user
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.nodes import Return
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.testing import mock

TIMEOUT_S = 30
Plan = list[Any]


def reply(call: Any) -> Any:
    digest = hashlib.sha256(call.prompt.encode()).hexdigest()
    if call.choices:
        return call.choices[int(digest, 16) % len(call.choices)]
    return " ".join(digest[: 1 + int(digest[0], 16) % 4])


def say(s: State, plan: Plan) -> list[Any]:
    """Follow a plan; what it gives."""
    given: list[Any] = []
    for step in plan:
        match step:
            case ["text", said]:
                s += said
            case ["gen", name, stop]:
                s += gen(name, max_tokens=12, stop=stop)
                s += " and " + s.ref(name)
                given.append(s[name])
            case ["turns", name]:
                s += user("Question?")
                s += assistant(gen(name, max_tokens=12))
            case ["select", name, choices]:
                s += select(name, choices)
                if s[name] == choices[0]:
                    s += " as expected"
                given.append(s[name])
            case ["fork", plans, mode]:
                given.append(fork(s, plans, mode))
            case ["loop", name, limit]:
                given.append(
                    s.loop(lambda inner, name=name: once(inner, name), until=name, stop_value="yes", limit=limit)
                )
            case ["call", inner]:
                given.append(nested(s, inner))
    return given


def once(s: State, name: str) -> Any:
    s += " again "
    s += select(name, ["yes", "no"])
    s += gen("in_loop", max_tokens=8)
    return s["in_loop"]


def fork(s: State, plans: list[Plan], mode: str) -> Any:
    branches = s.fork(len(plans))
    for branch, plan in zip(branches, plans, strict=True):
        branch += "branch "
        say(branch, plan)
        branch += gen("last", max_tokens=8)
    if mode == "concat":
        return branches.concat()
    return branches.join("last", mode=mode)


@program
def nested(s: State, plan: Plan) -> list[Any]:
    s += " nested "
    return say(s, plan)


@program
def whole(s: State, plan: Plan) -> list[Any]:
    s += "Start. "
    return say(s, plan)


def write(rng: random.Random, depth: int) -> Plan:
    """A plan of one to four steps; no more than two loops among them."""
    steps = [_step(rng, depth, f"v{i}") for i in range(rng.randint(1, 4))]
    loops = [step for step in steps if step[0] == "loop"]
    return [step for step in steps if step not in loops[2:]]


def _step(rng: random.Random, depth: int, name: str) -> Any:
    kind = rng.choice(["text", "gen", "gen", "turns", "select", "loop", "fork", "fork", "call"])
    if depth >= 2 and kind in ("fork", "call", "loop"):
        kind = "gen"
    match kind:
        case "text":
            return ["text", rng.choice(["plain ", "<|im_end|>", "ünïcode 🙂 ", "{braces} "])]
        case "gen":
            return ["gen", name, rng.choice([[], ["a"], ["3", "f 1"]])]
        case "select":
            return ["select", name, rng.choice([["x", "y"], ["New", "New York"], ["yes", "no", "maybe"]])]
        case "fork":
            mode = rng.choice(["all", "settle", "concat"])
            return ["fork", [write(rng, depth + 1) for _ in range(rng.randint(1, 3))], mode]
        case "loop":
            return ["loop", name, rng.randint(1, 3)]
        case "call":
            return ["call", write(rng, depth + 1)]
    return ["turns", name]


def same_in_both(seed: int) -> None:
    plan = write(random.Random(seed), 0)
    eager_backend, graph_backend = mock(reply), mock(reply)
    with eager_backend, graph_backend:
        eager = whole.run(plan, options=RunOptions(backend=eager_backend, seed=1))
        graph = parse(print_graph(whole.trace(plan)))
        run = execute(graph, graph_backend, RunSpec(options=RunOptions(seed=1)))
        summary = run.seal().result(TIMEOUT_S)
        assert summary.error is None, plan
        assert sorted(graph_backend.calls().prompts) == sorted(eager_backend.calls().prompts), plan
        [returned] = [node for node in graph if isinstance(node, Return)]
        assert run.value(returned.id).result(TIMEOUT_S).value == eager.value, plan


def test_random_programs_and_their_graphs_ask_and_give_the_same() -> None:
    for seed in range(30):
        same_in_both(seed)


@pytest.mark.long
def test_five_hundred_random_programs_and_their_graphs_ask_and_give_the_same() -> None:
    for seed in range(500):
        same_in_both(seed)
