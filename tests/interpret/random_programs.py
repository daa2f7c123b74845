"""A hypothesis strategy that writes programs: texts, gens, nested forks with joins of every mode, mentions of values."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from sglang_dsl.ir.nodes import Fork, Gen, Join, Node, Plain, Reference, Text


@st.composite
def programs(draw: Any) -> list[Node]:
    """A random program: texts, gens, nested forks with joins of every mode, mentions of earlier values."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    nodes: list[Node] = []
    gens: list[str] = []

    def add(node: Node) -> str:
        nodes.append(node)
        return node.id

    def body(context: str | None, branch: int | None, depth: int) -> tuple[str | None, str | None]:
        """Appends a few nodes; the last one's id and the last gen's."""
        last: str | None = None
        for step in range(rng.randint(1, 4)):
            at = branch if step == 0 else None
            kind = rng.choice(["text", "gen", "gen", "fork"] if depth < 3 else ["text", "gen"])
            node_id = f"n{len(nodes)}"
            if kind == "text" or context is None:
                pieces: list[Any] = [Plain(f"text {node_id} ")]
                if gens and rng.random() < 0.3:
                    pieces.append(Reference(rng.choice(gens)))
                context = add(Text(id=node_id, pieces=tuple(pieces), context=context, branch=at))
            elif kind == "gen":
                context = last = add(Gen(id=node_id, name=node_id, context=context, branch=at))
                if depth == 0:
                    gens.append(node_id)
            else:
                context, last = fork(node_id, context, at, depth), last
        return context, last

    def fork(fork_id: str, context: str, at: int | None, depth: int) -> str:
        size = rng.randint(1, 3)
        add(Fork(id=fork_id, size=size, context=context, branch=at))
        ends = [body(fork_id, i, depth + 1) for i in range(size)]
        mode = rng.choice(["all", "settle", "first", "vote", "best", "concat"])
        values = tuple(None if last is None else Reference(last) for _, last in ends)
        if mode in ("first", "vote", "best") and None in values:
            mode = "settle"
        tips = tuple(tip or fork_id for tip, _ in ends)
        join_id = f"n{len(nodes)}"
        return add(Join(id=join_id, context=fork_id, fork=fork_id, mode=mode, tips=tips, values=values))  # type: ignore[arg-type]

    body(None, None, 0)
    return nodes
