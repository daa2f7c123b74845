"""Graphs to draw: the shapes people will look at first, built by hand."""

from __future__ import annotations

from dataclasses import replace

from sglang_dsl.errors import Origin
from sglang_dsl.ir.execution import ChoiceScore, Meta, Outcome
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import (
    Arm,
    Break,
    Constant,
    Fork,
    Gen,
    Input,
    Join,
    ListOf,
    Loop,
    Map,
    Node,
    Operation,
    Plain,
    Raw,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    ToolNode,
)
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec

PREAMBLE = "You are a support agent of a web shop. Read the ticket and answer with one JSON object. " * 30
NASTY_TEXTS = [
    "end",
    "default",
    "a[0]",
    "f(x)",
    '"q"',
    "<b>",
    "`",
    "日本",
    "",
    "x" * 5000,
    "]]-->",
    "a-b",
    "a.b",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "@@SCRIPT@@",
    "a\nb\r\n%% c",
    "\u2028",
    "--> n0",
]


class Line:
    """Builds a graph node after node; `tip` is the last one."""

    def __init__(self, name: str, tip: str | None = None, prefix: str = "") -> None:
        self.graph = Graph(name=name)
        self.tip = tip
        self.prefix = prefix

    def add(self, node: Node, *, after: str | None = None, branch: int | None = None) -> str:
        node = replace(node, id=node.id or f"{self.prefix}{len(self.graph)}", context=after or self.tip, branch=branch)
        self.graph.append(node)
        self.tip = node.id
        return node.id

    def turn(self, role: str, *inside: Node, branch: int | None = None, after: str | None = None) -> list[str]:
        ids = [
            self.add(RoleBegin(id="", role=role, origin=Origin("agent.py", 12, "agent")), branch=branch, after=after)
        ]
        ids += [self.add(node) for node in inside]
        return [*ids, self.add(RoleEnd(id="", role=role))]


def text(value: str) -> Text:
    return Text(id="", pieces=(Plain(value),), origin=Origin("agent.py", 14, "agent"))


def support_agent(branches: int = 40) -> Graph:
    line = Line("support_agent")
    line.turn("system", text(PREAMBLE))
    schema = ConstraintSpec.json_schema({"type": "object", "properties": {"team": {"enum": ["billing", "tech"]}}})
    before = line.tip
    fork = line.add(Fork(id="fork", size=branches))
    tips, answers = [], []
    for index in range(branches):
        line.turn(
            "user",
            text(f"Ticket {index}: the parcel with order number {1000 + index * 37} has not come yet, please help."),
            branch=index,
            after=fork,
        )
        answer = Gen(
            id="", name="answer", constraint=schema, decode="json", sampling=SamplingSpec(max_tokens=192, temperature=0)
        )
        answers.append(line.turn("assistant", answer)[1])
        tips.append(line.tip)
    join = Join(id="join", name="answer", fork=fork, tips=tuple(tips), values=tuple(Reference(a) for a in answers))
    line.add(join, after=before)
    line.add(Return(id="return", value=Reference("join")))
    return line.graph


def support_outcomes(graph: Graph) -> dict[str, Outcome]:
    outcomes = {}
    for number, node in enumerate(n for n in graph if isinstance(n, Gen)):
        meta = Meta(
            token_ids=(1, 2, 3),
            prompt_tokens=3050,
            cached_tokens=3000,
            computed_tokens=50,
            generated_tokens=61,
            started_s=0.1 * (number % 4),
            first_token_s=0.1 * (number % 4) + 0.05,
            finished_s=1.5 + 0.1 * number,
            model="tiny",
        )
        reply = '{"team":"billing","priority":2,"reply":"We are sorry"}'
        outcomes[node.id] = Outcome(value={"team": "billing", "priority": 2}, text=reply, meta=meta)
    return outcomes


def tree_of_thought(width: int = 3, depth: int = 2) -> Graph:
    line = Line("tree_of_thought")
    line.turn("system", text("Solve the puzzle step by step. Propose, then rate each thought."))
    line.add(RoleBegin(id="", role="user"))
    line.add(text("Use the numbers 4, 7, 8 and 8 to make 24."))
    line.add(RoleEnd(id="", role="user"))
    line.add(RoleBegin(id="", role="assistant"))
    grow(line, width, depth, line.tip)
    return line.graph


def grow(line: Line, width: int, depth: int, after: str | None) -> None:
    fork = line.add(Fork(id="", size=width), after=after)
    tips, scores = [], []
    for index in range(width):
        line.add(text(f"Thought {index + 1}: "), after=fork, branch=index)
        thought = line.add(Gen(id="", name="thought", sampling=SamplingSpec(max_tokens=48, stop=("\n",))))
        line.add(Text(id="", pieces=(Plain("\nRate “"), Reference(thought, (Operation("strip"),)), Plain("”: "))))
        scores.append(line.add(Select(id="", name="score", choices=("sure", "maybe", "impossible"))))
        if depth > 1:
            grow(line, width, depth - 1, line.tip)
        tips.append(line.tip)
    line.add(
        Join(
            id="",
            name="score",
            mode="best",
            key="rank",
            fork=fork,
            tips=tuple(tips),
            values=tuple(map(Reference, scores)),
        ),
        after=after,
    )


def router() -> Graph:
    """A switch on a select, and a break on free text."""
    line = Line("router")
    line.add(Input(id="question", name="question"))
    line.turn("system", text("Route the question."))
    line.turn("user", Text(id="", pieces=(Reference("question"),)))
    line.add(RoleBegin(id="", role="assistant"))
    line.add(Select(id="k", name="k", choices=("x", "y")))
    arms = []
    for name, choice in (("proof", "x"), ("essay", "y")):
        arm = Line("", prefix=f"{choice}.")
        arm.add(text(f"\nA good {name} is: "))
        gen = arm.add(Gen(id="", name=name, sampling=SamplingSpec(max_tokens=128), control=("k",)))
        arms.append(Arm(values=(choice,), graph=arm.graph, result=Reference(gen)))
    line.add(Switch(id="way", on=Reference("k"), arms=tuple(arms)))
    line.add(Gen(id="free", name="free"))
    line.add(Break(id="broken", reason="`if 'yes' in s['free']` asks free text", on=Reference("free")))
    return line.graph


def every_kind() -> Graph:
    """One node of each kind at least."""
    line = Line("every_kind")
    line.add(Input(id="topics", name="topics", type_name="list[str]"))
    line.add(Text(id="", pieces=(Plain("Plain "), Raw("<|raw|>"), Reference("topics", (Operation("item", (0,)),)))))
    line.turn("user", text("hello"))
    line.add(ToolNode(id="search", tool="search", name="hits", pure=True))
    body = Line("", prefix="loop.")
    body.add(Select(id="done", name="done", choices=("yes", "no")))
    line.add(Loop(id="loop", body=body.graph, until=Reference("done"), stop_value="yes", limit=3))
    inner = Line("", prefix="map.")
    inner.add(Input(id="item", name="item"))
    inner.add(Gen(id="line", name="line"))
    line.add(Map(id="map", items=Reference("topics"), item="item", body=inner.graph, result=Reference("line")))
    grow(line, 2, 1, line.tip)
    line.add(Return(id="return", value=ListOf((Reference("map"), Constant(1)))))
    return line.graph


def scored() -> dict[str, Outcome]:
    choices = (
        ChoiceScore(text="x", score=-0.2, token_ids=(1,), logprobs=(-0.2,)),
        ChoiceScore(text="y", score=-1.7, token_ids=(2,), logprobs=(-1.7,)),
    )
    meta = Meta(
        prompt_tokens=40,
        cached_tokens=0,
        computed_tokens=40,
        generated_tokens=1,
        choices=choices,
        finish_reason="selected",
    )
    gen = Meta(prompt_tokens=48, cached_tokens=41, computed_tokens=7, generated_tokens=20, finished_s=2.0)
    return {
        "k": Outcome(value="x", text="x", meta=meta),
        "x.1": Outcome(value="By induction.", text="By induction.", meta=gen),
        "way": Outcome(value="By induction."),
    }


def nasty() -> Graph:
    """Every dangerous text as node name, variable name and prompt."""
    line = Line('"</title><script>alert(1)</script>')
    for index, value in enumerate(NASTY_TEXTS):
        line.add(text(value))
        line.add(Gen(id=f"{value[:40]}#{index}", name=value or "empty"))
    fork = line.add(Fork(id="]]", size=2))
    line.add(Select(id="sel", name="`", choices=tuple(NASTY_TEXTS)), after=fork, branch=0)
    return line.graph


def wide(nodes: int = 5000) -> Graph:
    """A fork whose branches are a text and a gen each."""
    line = Line("wide")
    line.add(text(PREAMBLE))
    size = nodes // 2
    fork = line.add(Fork(id="fork", size=size))
    for index in range(size):
        line.add(text(f"Question {index}: "), after=fork, branch=index)
        line.add(Gen(id="", name="answer"))
    return line.graph


def long(nodes: int = 5000) -> Graph:
    """One chain."""
    line = Line("long")
    for index in range(nodes // 2):
        line.add(text(f"Step {index}: "))
        line.add(Gen(id="", name="step"))
    return line.graph
