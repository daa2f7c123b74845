"""Hypothesis strategies over every node kind and every field of the graph: for round trips, not for running."""

from __future__ import annotations

from hypothesis import strategies as st

from sglang_dsl.errors import Origin
from sglang_dsl.ir import nodes as n
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.operations import OPERATION_NAMES
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec

IDS = st.one_of(
    st.from_regex(r"[a-z]{0,3}/?[0-9]{1,2}(\.[0-9])?(\[[0-9](,[0-9])?\])?(#[0-9])?", fullmatch=True),
    st.text(min_size=1, max_size=8),
)
NAMES = st.one_of(
    st.sampled_from(["end", "graph", "case", "in", "a b", '"', "日本", "%x", "const"]), st.text(max_size=10)
)
TEXTS = st.text(max_size=40)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OPERATIONS = st.builds(
    n.Operation,
    st.sampled_from(OPERATION_NAMES) | st.text(min_size=1, max_size=5),
    st.lists(JSON, max_size=3).map(tuple),
)
REFERENCES = st.builds(n.Reference, IDS, st.lists(OPERATIONS, max_size=3).map(tuple))
EXPRESSIONS = st.recursive(
    st.builds(n.Constant, JSON) | REFERENCES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple).map(n.ListOf),
        st.lists(st.tuples(TEXTS, inner), max_size=3).map(tuple).map(n.DictOf),
        st.lists(inner, max_size=3).map(tuple).map(n.Concat),
    ),
    max_leaves=6,
)
DICTS = st.lists(st.tuples(TEXTS, EXPRESSIONS), max_size=3).map(tuple).map(n.DictOf)
PIECES = st.one_of(st.builds(n.Plain, TEXTS), st.builds(n.Raw, TEXTS), REFERENCES)


def maybe(strategy):
    return st.none() | strategy


def several(strategy, most=3):
    return st.lists(strategy, max_size=most).map(tuple)


STOPS = several(st.text(min_size=1, max_size=5))
SAMPLING = st.builds(
    SamplingSpec,
    max_tokens=st.integers(10, 4096),
    min_tokens=st.integers(0, 10),
    temperature=st.floats(0, 3) | st.integers(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 100),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 2),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    logit_bias=several(st.tuples(st.integers(0, 99), st.floats(-100, 100))),
    seed=maybe(st.integers(-(2**63), 2**64 - 1)),
    stop=STOPS,
    stop_token_ids=several(st.integers(0, 99)),
    stop_regex=STOPS,
    include_stop=st.booleans(),
    ignore_eos=st.booleans(),
    logprobs=maybe(st.integers(0, 20)),
)
SCHEMAS = st.dictionaries(TEXTS, JSON, max_size=3) | st.booleans()
CONSTRAINTS = st.one_of(
    st.builds(
        ConstraintSpec,
        kind=st.sampled_from(["json_schema", "regex", "choices", "lark", "ebnf"]),
        text=TEXTS,
        max_whitespace=maybe(st.integers(0, 9)),
    ),
    SCHEMAS.map(ConstraintSpec.json_schema),
    several(TEXTS).map(ConstraintSpec.choices),
)
SECONDS = maybe(st.floats(0.001, 1e6))


def node_of(node_class, **fields):
    return st.builds(
        node_class,
        id=IDS,
        context=maybe(IDS),
        branch=maybe(st.integers(0, 99)),
        control=several(IDS),
        scope=NAMES,
        origin=maybe(st.builds(Origin, TEXTS, st.integers(1, 99), NAMES, st.integers(-1, 9), st.integers(-1, 9))),
        **fields,
    )


FLAT_NODES = st.one_of(
    node_of(n.Input, name=NAMES, type_name=TEXTS),
    node_of(n.Text, pieces=several(PIECES, 4)),
    node_of(n.RoleBegin, role=NAMES),
    node_of(n.RoleEnd, role=NAMES),
    node_of(
        n.Gen,
        name=maybe(NAMES),
        sampling=SAMPLING,
        constraint=maybe(CONSTRAINTS),
        decode=st.sampled_from(["text", "json"]),
        model=maybe(NAMES),
        partial_ok=st.booleans(),
        retries=st.integers(0, 9),
        validator=maybe(NAMES),
        reasoning=maybe(st.builds(n.Reasoning, TEXTS, TEXTS, maybe(st.integers(1, 999)))),
        timeout_s=SECONDS,
        heal=st.booleans(),
        sample=st.integers(0, 9),
    ),
    node_of(
        n.Select,
        name=maybe(NAMES),
        choices=several(TEXTS | REFERENCES),
        method=st.sampled_from(["mean", "sum", "greedy", "unconditional"]),
        model=maybe(NAMES),
    ),
    node_of(n.Fork, size=st.integers(0, 9999)),
    node_of(
        n.Join,
        fork=IDS,
        name=maybe(NAMES),
        mode=st.sampled_from(["all", "settle", "first", "quorum", "vote", "best", "concat"]),
        tips=several(IDS),
        values=several(maybe(EXPRESSIONS)),
        k=maybe(st.integers(1, 9)),
        key=maybe(NAMES),
    ),
    node_of(
        n.ToolNode,
        name=maybe(NAMES),
        tool=NAMES,
        arguments=DICTS,
        timeout_s=SECONDS,
        pure=st.booleans(),
        idempotent=st.booleans(),
    ),
    node_of(n.Break, reason=TEXTS, on=maybe(REFERENCES)),
    node_of(n.Return, value=EXPRESSIONS),
)


def graphs_of(nodes):
    """Graphs with unique ids."""
    return st.builds(Graph, st.lists(nodes, max_size=5, unique_by=lambda node: node.id), name=NAMES)


def holders(nodes):
    graphs = graphs_of(nodes)
    arms = st.builds(n.Arm, values=maybe(several(JSON)), graph=graphs, result=maybe(EXPRESSIONS))
    return nodes | st.one_of(
        node_of(n.Switch, name=maybe(NAMES), on=REFERENCES, arms=several(arms), assumed=st.booleans()),
        node_of(
            n.Loop,
            name=maybe(NAMES),
            body=graphs,
            until=maybe(REFERENCES),
            stop_value=JSON,
            limit=st.integers(0, 99),
            result=maybe(EXPRESSIONS),
        ),
        node_of(n.Map, name=maybe(NAMES), items=EXPRESSIONS, item=IDS, body=graphs, result=maybe(EXPRESSIONS)),
    )


NODES = holders(holders(FLAT_NODES))
GRAPHS = graphs_of(NODES)


def same(left: object, right: object) -> bool:
    """Equal in value and in type at every depth (1, 1.0 and True are three values)."""
    if isinstance(left, Graph) and isinstance(right, Graph):
        return left.name == right.name and same(list(left), list(right))
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if hasattr(left, "__slots__") and hasattr(left, "__dataclass_fields__"):
        return all(
            same(getattr(left, f), getattr(right, f)) for f, spec in left.__dataclass_fields__.items() if spec.compare
        )
    return left == right
