"""The node kinds of the graph: plain frozen data, no behaviour.

A program run or traced is a growing list of these. Three kinds of edge hang off every node:

    context   whose text is my prefix        (the KV-cache relation; one path to the root)
    data      whose value do I mention       (`data_of(node)`)
    control   whose value decided that I run (`control`)

Ids are stable strings (design note in docs/graph.md): scope path, call-site number, branch index, occurrence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from .expressions import Concat as Concat
from .expressions import Constant as Constant
from .expressions import DictOf as DictOf
from .expressions import Expression as Expression
from .expressions import Json as Json
from .expressions import ListOf as ListOf
from .expressions import Operation as Operation
from .expressions import Piece as Piece
from .expressions import Plain as Plain
from .expressions import Raw as Raw
from .expressions import Reference as Reference
from .expressions import references_in as references_in
from .graph import Graph
from .graph import Node as Node
from .graph import data_of as data_of
from .outcome import Outcome
from .specs import ConstraintSpec, Decode, JoinMode, SamplingSpec, SelectMethod

Data = TypeVar("Data")


def quick_init(cls: type[Data]) -> type[Data]:
    """Give a `@dataclass(frozen=True, slots=True, kw_only=True)` without `__post_init__` a faster `__init__`; nothing else changes.

    The one that `dataclasses` makes sets each field by name through `object.__setattr__`. This one writes through the slots'
    own descriptors, which takes 1.0 µs instead of 1.7 for a Gen; a program makes one or more nodes with each append.
    """
    names: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for each in fields(cls):  # type: ignore[arg-type]  # any dataclass
        name = each.name
        names[f"set_{name}"] = getattr(cls, name).__set__
        value = name
        if each.default_factory is not MISSING:
            names[f"new_{name}"] = each.default_factory
            parameters.append(f"{name}=MISSING")
            value = f"new_{name}() if {name} is MISSING else {name}"
        elif each.default is not MISSING:
            names[f"default_{name}"] = each.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        body.append(f"    set_{name}(self, {value})")
    exec(f"def __init__(self, *, {', '.join(parameters)}):\n" + "\n".join(body), names)
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**cls.__init__.__annotations__}
    cls.__init__ = init  # type: ignore[method-assign]  # the same signature
    return cls


T = TypeVar("T")
Role: TypeAlias = str  # "system" | "user" | "assistant" | "tool" | whatever the model's template knows
_ROLE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")


def is_role_word(role: object) -> bool:
    """Whether it can be a role at all: a role's name stands in the prompt among control tokens, so it is one plain word."""
    return isinstance(role, str) and _ROLE_WORD.match(role) is not None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Input(Node):
    """A program argument that is not known while tracing.

    structure: what the graph takes for granted of a list or dict: the same lists and keys, with type names for leaves.
    """

    kind: ClassVar[str] = "input"

    name: str
    type_name: str = "str"
    structure: Json = None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Node):
    """Text appended to the state."""

    kind: ClassVar[str] = "text"

    pieces: tuple[Piece, ...]

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """Its pieces."""
        return self.pieces


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBegin(Node):
    """A turn opens. What it reads as is a fact of the model's template, decided in `runtime/text`."""

    kind: ClassVar[str] = "role_begin"

    role: Role


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEnd(Node):
    """The turn closes."""

    kind: ClassVar[str] = "role_end"

    role: Role


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Gen(Node):
    """One model call that appends what it generates.

    decode: how the finished text becomes the value: as it is, or parsed as JSON. retries: how many more attempts after
    an InvalidValueError; validator: registry key of the Python callable that may refuse a value. reasoning: the pair
    of markers around a reasoning part kept apart from the answer, and its token budget.
    """

    kind: ClassVar[str] = "gen"

    name: str | None = None
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    constraint: ConstraintSpec | None = None
    decode: Decode = "text"
    model: str | None = None
    partial_ok: bool = False
    retries: int = 0
    validator: str | None = None
    reasoning: Reasoning | None = None
    timeout_s: float | None = None
    heal: bool = False
    sample: int = 0  # sample index within gen(n=k); enters the node seed


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning part in front of the answer: text between `begin` and `end`.

    budget_tokens: most tokens of it; it counts towards the call's `max_tokens`. regex: what the thoughts have to match.
    """

    begin: str = "<think>"
    end: str = "</think>"
    budget_tokens: int | None = None
    regex: str | None = None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Node):
    """The best of several texts under the model, appended to the state."""

    kind: ClassVar[str] = "select"

    name: str | None = None
    choices: tuple[str | Reference, ...]
    method: SelectMethod = "mean"
    model: str | None = None

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """Its choices."""
        return self.choices


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Node):
    """The state splits into `size` branches that share everything so far. `size` may be an Input's value (traced)."""

    kind: ClassVar[str] = "fork"

    size: int


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Branches of one fork come together in the parent.

    tips: the last context node of each branch when it was joined (the fork's own id for an empty branch).
    values: per branch the expression whose value is gathered (None where the branch never bound the name).
    skipped: branches that take no part: they are left out of lists and text, never win, and are a CancelledError in
    the list of mode `settle`. cancel_rest: whether a mode that may be decided early ends the branches that still run.
    A join adds no text to its context, except mode `concat`, which appends each branch's text.
    """

    kind: ClassVar[str] = "join"

    fork: str
    name: str | None = None
    mode: JoinMode = "all"
    tips: tuple[str, ...] = ()
    values: tuple[Expression | None, ...] = ()
    k: int | None = None
    key: str | None = None  # registry key of `best(key)`
    skipped: tuple[int, ...] = ()
    cancel_rest: bool = True

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """The value of each branch."""
        return self.values


class Objects(Protocol):
    """Arguments of a call as Python objects. Implemented by the frontend (`data.Template`)."""

    def fill(self, outcomes: Callable[[str], Outcome]) -> dict[str, Any]:
        """The arguments by name. `outcomes`: of the nodes that they mention, by id."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNode(Node):
    """A registered Python function, called with JSON arguments. Appends nothing by itself; its value is JSON.

    objects: in the graph of a run, the arguments as the Python objects that the program gave; never stored.
    """

    kind: ClassVar[str] = "tool"

    name: str | None = None
    tool: str
    arguments: DictOf = field(default_factory=lambda: DictOf(()))
    timeout_s: float | None = None
    pure: bool = False
    idempotent: bool = False
    objects: Objects | None = field(default=None, compare=False, repr=False)

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """Its arguments."""
        return (self.arguments,)


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a Switch: runs when the value is one of `values` (None: anything not named by another arm)."""

    values: tuple[Json, ...] | None
    graph: Graph
    result: Expression | None = None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(Node):
    """Exactly one arm runs, chosen by the value of `on`. Arms continue this node's context; what follows hangs on it.

    assumed: not every combination of outcomes was visited while tracing, so the picture may miss a path.
    """

    kind: ClassVar[str] = "switch"
    holds_graphs: ClassVar[bool] = True

    name: str | None = None
    on: Reference
    arms: tuple[Arm, ...]
    assumed: bool = False

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """The value that decides."""
        return (self.on,)

    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each arm."""
        return tuple(arm.graph for arm in self.arms)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Node):
    """`body` repeats in this node's context until the value of `until` (a name bound in the body) is `stop_value`, at most `limit` times."""

    kind: ClassVar[str] = "loop"
    holds_graphs: ClassVar[bool] = True

    name: str | None = None
    body: Graph
    until: Reference | None = None
    stop_value: Json = True
    limit: int = 1
    result: Expression | None = None

    def graphs(self) -> tuple[Graph, ...]:
        """Its body."""
        return (self.body,)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """`body` once per item of `items`, each in a branch of its own; `item` is the id of the Input inside the body."""

    kind: ClassVar[str] = "map"
    holds_graphs: ClassVar[bool] = True

    name: str | None = None
    items: Expression
    item: str
    body: Graph
    result: Expression | None = None

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """Its items."""
        return (self.items,)

    def graphs(self) -> tuple[Graph, ...]:
        """Its body."""
        return (self.body,)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Break(Node):
    """Tracing could not follow the body past here: `reason` says what Python asked of a value that does not exist yet."""

    kind: ClassVar[str] = "break"

    reason: str
    on: Reference | None = None

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """The value that was asked of."""
        return (self.on,)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Return(Node):
    """What the program returns."""

    kind: ClassVar[str] = "return"

    value: Expression

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """What it returns."""
        return (self.value,)


ModelCall: TypeAlias = Gen | Select
NODE_CLASSES: dict[str, type[Node]] = {
    c.kind: c
    for c in (Input, Text, RoleBegin, RoleEnd, Gen, Select, Fork, Join, ToolNode, Switch, Loop, Map, Break, Return)
}


def taking_part(join: Join, of_branches: Sequence[T]) -> list[T]:
    """What there is of each branch of a join, in order, without the branches that it leaves out."""
    return [one for index, one in enumerate(of_branches) if index not in join.skipped]


def subgraphs(node: Node) -> tuple[Graph, ...]:
    """The graphs a node holds: a Switch's arms, a Loop's or Map's body."""
    return node.graphs()
