"""How cost grows with size: CPU seconds at doubling sizes, and the exponent of the last doubling (1.0: time per node is constant).

    python benchmarks/growth.py [--check] [--only WORD ...] [--list]

Shapes of the frontend run against an executor that has every value at once, up to 16,000 nodes; those of the runtime on the mock,
up to 4,000. What is measured is the process's CPU time, the best of a few with the garbage collector at rest, so that a busy
machine disturbs little; where a measurement misses the bar it is taken again before it counts. `--check`: exit code 1, with figure
and bar, where an exponent is above the bar.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also where it is run as a file

from benchmarks.frontend import NullExecutor
from sglang_dsl import RunOptions, State, assistant, gen, program, select, system, tool, user
from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.explain import explain
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Fork, Gen, Join, Node, Plain, Reference, RoleBegin, RoleEnd, Text
from sglang_dsl.ir.record import load_record, save_record
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import verify
from sglang_dsl.runtime.backends.mock import MockExecutor, mock
from sglang_dsl.runtime.text.jinja_template import JinjaTemplate
from sglang_dsl.runtime.text.tokenizer import ChatTemplate

BAR = 1.2
DOUBLINGS = 3
REPEATS = 3  # the best of so many counts; sizes that take long are measured less often
LONG_S = 0.4
RETRIES = 3  # a figure above the bar is measured again so often
CONTEXT_TOKENS = 1 << 20
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Work = Callable[[], object]


class Shape(NamedTuple):
    """`prepare(n)` gives the work for n units (of `nodes` nodes each); `largest`: nodes of the largest size.

    bar: above BAR only where what is asked for grows itself: all messages, as new dicts, after each turn.
    """

    name: str
    prepare: Callable[[int], Work]
    nodes: float
    largest: int
    bar: float = BAR

    def sizes(self) -> list[int]:
        """Doubling numbers of units."""
        largest = max(2**DOUBLINGS, round(self.largest / self.nodes))
        return [largest // 2**halvings for halvings in range(DOUBLINGS, -1, -1)]


# --- programs -------------------------------------------------------------------------------------------------------


@program
def chain(s: State, n: int) -> str:
    for _ in range(n):
        s += "Q: " + gen("a", max_tokens=8)
    return s["a"]


@program
def chain_read(s: State, n: int) -> str:
    for i in range(n):
        s += f"Q {i}: " + gen("a", max_tokens=8)
        last = s["a"]
    return last


@program
def fork_rounds(s: State, n: int) -> str:
    for i in range(n):
        branches = s.fork(2)
        for branch in branches:
            branch += "option " + gen(f"tip{i}", max_tokens=8)
        branches.join(f"tip{i}")
        s += "then " + gen("a", max_tokens=8)
        last = s["a"]
    return last


@program
def nested_forks(s: State, n: int) -> None:
    at = s
    for _ in range(n):
        at = at.fork(1)[0]
        at += "deeper "
    at += gen("leaf", max_tokens=8)
    at["leaf"]


@program
def nested_calls(s: State, n: int) -> None:
    at = s
    for i in range(n):
        branches = at.fork(2)
        branches[1] += "aside " + gen(f"aside{i}", max_tokens=8)
        at = branches[0]
        at += "deeper " + gen(f"d{i}", max_tokens=8)
        at[f"d{i}"]


def wide(mode: str) -> Any:
    @program
    def wide_fork(s: State, n: int) -> Any:
        s += "begin "
        branches = s.fork(n)
        branches += "tip " + gen("tip", max_tokens=8)
        if mode in ("first", "quorum"):
            return branches.join("tip", mode=mode, k=max(n // 2, 1))
        if mode == "best":
            return branches.join("tip", mode=mode, key=len)
        return branches.join("tip", mode=mode)

    return wide_fork


@program
def talk(s: State, n: int) -> str:
    s += system("You answer.")
    for i in range(n):
        s += user(f"question {i}")
        s += assistant(gen("a", max_tokens=8))
    return s["a"]


@program
def read_text(s: State, n: int) -> int:
    total = 0
    for _ in range(n):
        s += "Q: " + gen("a", max_tokens=8)
        total += len(s.text)
    return total


@program
def read_messages(s: State, n: int) -> int:
    total = 0
    for i in range(n):
        s += user(f"question {i}")
        s += assistant(gen("a", max_tokens=8))
        total += len(s.messages())
    return total


@program
def long_turn(s: State, n: int) -> str:
    with s.user():
        for i in range(n):
            s += f"line {i} of a long document\n"
    s += assistant(gen("a", max_tokens=8))
    return s["a"]


@program
def all_values(s: State, n: int) -> int:
    for _ in range(n):
        s += "Q: " + gen("a", max_tokens=8)
    return len(s.all("a"))


@program
def rebinding(s: State, n: int) -> str:
    said = gen("a", max_tokens=8)
    for _ in range(n):
        s += said
        last = s[said]
    return last


@program
def many_handles(s: State, n: int) -> int:
    handles = [gen(f"a{i}", max_tokens=8) for i in range(n)]
    for handle in handles:
        s += handle
    return sum(len(s[handle]) for handle in handles)


@tool
def look_up(key: int) -> str:
    """Answers."""
    return f"value {key}"


@program
def tools(s: State, n: int) -> str:
    for i in range(n):
        s += s.call(look_up, i)
    return s["look_up"]


@program
def map_items(s: State, n: int) -> int:
    s += "items: "

    def body(branch: State, item: int) -> str:
        branch += f"item {item}: " + gen("v", max_tokens=8)
        return branch["v"]

    return len(s.map(list(range(n)), body))


@program
def looping(s: State, n: int) -> None:
    def body(inner: State) -> None:
        inner += "turn " + gen("v", max_tokens=8)

    s.loop(body, until="v", stop_value="never", limit=n)


@program
def inner_program(s: State) -> str:
    s += "inner " + gen("v", max_tokens=8)
    return s["v"]


@program
def nested_programs(s: State, n: int) -> None:
    for _ in range(n):
        inner_program(s)


@program
def item_program(s: State, item: int) -> str:
    s += f"item {item}: " + gen("v", max_tokens=8)
    return s["v"]


@program
def chosen(s: State, n: int) -> str:
    for i in range(n):
        s += f"pick {i}: " + select("c", ["left", "right"])
    return s["c"]


# --- ways to run them -----------------------------------------------------------------------------------------------


def on_null(prog: Any) -> Callable[[int], Work]:
    """The frontend alone."""
    options = RunOptions(backend=NullExecutor())
    return lambda n: lambda: prog.run(n, options=options)


def open_mock(template: ChatTemplate | None = None) -> MockExecutor:
    return mock(
        lambda call: call.choices[0] if call.choices else "ok", template=template, context_tokens=CONTEXT_TOKENS
    )


def on_mock(prog: Any, template: str | None = None) -> Callable[[int], Work]:
    """The whole runtime, with a new engine each time."""

    def run(n: int) -> object:
        with open_mock(None if template is None else JinjaTemplate(template)) as backend:
            return prog.run(n, options=RunOptions(backend=backend))

    return lambda n: lambda: run(n)


def batch(n: int) -> Work:
    def run() -> object:
        with open_mock() as backend:
            return item_program.run_batch(range(n), options=RunOptions(backend=backend), concurrency=8)

    return run


def streamed(n: int) -> Work:
    def run() -> int:
        with open_mock() as backend:
            return sum(len(piece) for piece in chain.stream(n, options=RunOptions(backend=backend)))

    return run


def events(n: int) -> Work:
    def run() -> int:
        with open_mock() as backend:
            running = chain.start(n, options=RunOptions(backend=backend))
            return sum(1 for _ in running.session.run.events())

    return run


# --- graphs ---------------------------------------------------------------------------------------------------------


def chain_graph(n: int) -> Graph:
    """n times text and call."""
    nodes: list[Node] = []
    tip = None
    for i in range(n):
        nodes.append(Text(id=f"t{i}", context=tip, pieces=(Plain(f"question {i}: "),)))
        nodes.append(Gen(id=f"g{i}", context=f"t{i}", name="a", sampling=SamplingSpec(max_tokens=8)))
        tip = f"g{i}"
    return Graph(nodes, name="chain").freeze()


def rounds_graph(n: int) -> Graph:
    """n rounds of a fork into two calls and their join."""
    nodes: list[Node] = [Text(id="t", pieces=(Plain("begin "),))]
    tip = "t"
    for i in range(n):
        nodes.append(Fork(id=f"f{i}", context=tip, size=2))
        tips = []
        for b in range(2):
            nodes.append(Gen(id=f"g{i}_{b}", context=f"f{i}", branch=b, name="a", sampling=SamplingSpec(max_tokens=8)))
            tips.append(f"g{i}_{b}")
        values = tuple(Reference(t) for t in tips)
        nodes.append(Join(id=f"j{i}", context=f"f{i}", fork=f"f{i}", name="a", tips=tuple(tips), values=values))
        tip = f"j{i}"
    return Graph(nodes, name="rounds").freeze()


def turns_graph(n: int) -> Graph:
    """n turns of a user and a model."""
    nodes: list[Node] = []
    tip = None
    for i in range(n):
        for role, inner in (("user", Text), ("assistant", Gen)):
            nodes.append(RoleBegin(id=f"{role}{i}", context=tip, role=role))
            if inner is Text:
                nodes.append(Text(id=f"said{i}", context=f"{role}{i}", pieces=(Plain(f"question {i}"),)))
            else:
                nodes.append(Gen(id=f"g{i}", context=f"{role}{i}", name="a", sampling=SamplingSpec(max_tokens=8)))
            nodes.append(RoleEnd(id=f"{role}{i}e", context=nodes[-1].id, role=role))
            tip = nodes[-1].id
    return Graph(nodes, name="turns").freeze()


def on_graph(graph_of: Callable[[int], Graph], act: Callable[[Graph], object]) -> Callable[[int], Work]:
    """Something done with a graph that is there."""

    def prepare(n: int) -> Work:
        graph = graph_of(n)
        return lambda: act(_fresh(graph))

    return prepare


def _fresh(graph: Graph) -> Graph:
    """Without the view that a graph remembers."""
    return Graph(graph, name=graph.name).freeze()


def explained(graph: Graph) -> str:
    with open_mock() as backend:
        return str(explain(graph, backend.meter()))


def recorded(n: int) -> Work:
    with open_mock() as backend:
        record = chain.run(n, options=RunOptions(backend=backend)).record
    folder = tempfile.mkdtemp()

    def run() -> object:
        path = Path(folder) / "run.jsonl"
        save_record(record, path)
        return load_record(path)

    return run


def timeline(n: int) -> Work:
    with open_mock() as backend:
        result = chain.run(n, options=RunOptions(backend=backend))
    return lambda: draw(result.graph, "trace", outcomes=result.outcomes)


NULL, MOCK = 16_000, 4_000


def shapes() -> Iterator[Shape]:
    """All of them: what most programs are first."""
    for name, prog, nodes in (
        ("chain of calls", chain, 2.0),
        ("calls, each read", chain_read, 2.0),
        ("fork, join, call", fork_rounds, 8.0),
        ("turns", talk, 6.0),
        ("s.text after each call", read_text, 2.0),
        ("s.messages() after each turn", read_messages, 6.0),
        ("one long turn", long_turn, 1.0),
        ("fork in fork", nested_forks, 2.0),
        ("fork in fork, calls", nested_calls, 5.0),
        ("s.all", all_values, 2.0),
        ("one name again and again", rebinding, 1.0),
        ("handles", many_handles, 1.0),
        ("selects", chosen, 2.0),
        ("tools", tools, 2.0),
        ("map over items", map_items, 2.0),
        ("loop", looping, 2.0),
        ("nested programs", nested_programs, 2.0),
    ):
        bar = 2.0 if prog is read_messages else BAR
        if prog is not map_items:
            yield Shape(f"null: {name}", on_null(prog), nodes, NULL, bar)
        yield Shape(f"mock: {name}", on_mock(prog), nodes, MOCK, bar)
    for mode in ("all", "settle", "first", "quorum", "vote", "best", "concat"):
        yield Shape(f"mock: wide fork, {mode}", on_mock(wide(mode)), 2.0, MOCK)
    yield Shape("null: wide fork", on_null(wide("all")), 2.0, NULL)
    yield Shape("mock: turns, Jinja template", on_mock(talk, CHATML), 6.0, MOCK)
    yield Shape("mock: stream", streamed, 2.0, MOCK)
    yield Shape("mock: events", events, 2.0, MOCK)
    yield Shape("mock: run_batch", batch, 2.0, MOCK)
    yield Shape("mock: record, saved and loaded", recorded, 2.0, MOCK)
    for kind, graph_of, nodes in (
        ("chain", chain_graph, 2.0),
        ("rounds", rounds_graph, 4.0),
        ("turns", turns_graph, 6.0),
    ):
        yield Shape(f"explain: {kind}", on_graph(graph_of, explained), nodes, MOCK)
        yield Shape(f"verify: {kind}", on_graph(graph_of, verify), nodes, NULL)
        yield Shape(f"print: {kind}", on_graph(graph_of, print_graph), nodes, NULL)
        yield Shape(f"json: {kind}", on_graph(graph_of, lambda g: loads(dumps(g))), nodes, MOCK)
        yield Shape(f"parse: {kind}", _parsing(graph_of), nodes, MOCK)
        for form in ("terminal", "mermaid", "dot", "svg", "html"):
            yield Shape(f"draw {form}: {kind}", on_graph(graph_of, _drawing(form)), nodes, MOCK)
    yield Shape("draw trace: chain", timeline, 2.0, MOCK)
    for name, prog, nodes in (("chain", chain, 2.0), ("fork, join, call", fork_rounds, 8.0), ("turns", talk, 6.0)):
        yield Shape(f"trace: {name}", _tracing(prog), nodes, MOCK)


def _drawing(form: Any) -> Callable[[Graph], object]:
    return lambda graph: draw(graph, form)


def _parsing(graph_of: Callable[[int], Graph]) -> Callable[[int], Work]:
    def prepare(n: int) -> Work:
        text = print_graph(graph_of(n))
        return lambda: parse(text)

    return prepare


def _tracing(prog: Any) -> Callable[[int], Work]:
    return lambda n: lambda: prog.trace(n)


# --- measuring ------------------------------------------------------------------------------------------------------


def cpu_s(work: Work, repeats: int = REPEATS) -> float:
    """CPU seconds of the best of a few, without garbage collections in between."""
    best = math.inf
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        began = time.process_time()
        try:
            work()
        finally:
            spent = time.process_time() - began
            gc.enable()
        best = min(best, spent)
        if spent > LONG_S:
            break
    return best


def measure(shape: Shape) -> tuple[list[int], list[float]]:
    """Sizes, and the CPU seconds at each."""
    sizes = shape.sizes()
    shape.prepare(sizes[0])()
    return sizes, [cpu_s(shape.prepare(n)) for n in sizes]


def exponent(costs: list[float]) -> float:
    """Of the last doubling: 1 where twice the size costs twice as much."""
    return math.log2(costs[-1] / costs[-2])


def again(shape: Shape, costs: list[float]) -> list[float]:
    """The last two sizes once more; the lower figure of each counts."""
    larger = [cpu_s(shape.prepare(n)) for n in shape.sizes()[-2:]]
    return [*costs[:-2], *map(min, costs[-2:], larger)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"fail where an exponent is above {BAR}")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="shapes whose names hold one of these")
    parser.add_argument("--list", action="store_true", help="only name the shapes")
    chosen_options = parser.parse_args()
    missed = []
    for shape in shapes():
        if not any(word in shape.name for word in chosen_options.only):
            continue
        if chosen_options.list:
            print(shape.name)
            continue
        sizes, costs = measure(shape)
        for _ in range(RETRIES):
            if exponent(costs) > shape.bar:
                costs = again(shape, costs)
        figures = "  ".join(f"{n:>6}: {cost:7.3f} s" for n, cost in zip(sizes, costs, strict=True))
        print(f"{shape.name:<36} {figures}   exponent {exponent(costs):5.2f}", flush=True)
        if exponent(costs) > shape.bar:
            missed.append((shape, exponent(costs)))
    for shape, found in missed:
        print(f"above the bar: {shape.name}: {found:.2f} (bar {shape.bar})", file=sys.stderr)
    return 1 if missed and chosen_options.check else 0


if __name__ == "__main__":
    sys.exit(main())
