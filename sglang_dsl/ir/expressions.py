"""What a node can mention: constants, values of other nodes, and how they are put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from ..errors import GraphError

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
MAX_DATA_DEPTH = 100  # lists and dicts in each other: Python itself walks and prints no more than some hundred levels


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded pure operation on a referenced value, e.g. `strip()` or `[2]`: `name` with constant arguments.

    name is a `str` method ("strip", "upper", ...), "format" (args: format spec), "repr", "item" (args: key or index)
    "attr", or "splice" (args: at which indices of a list the items of the list there stand). `sglang_dsl.ir.operations.apply` is the only place that evaluates them.
    """

    name: str
    args: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """The value of another node (Gen, Select, Join, Tool, Input, Switch, ...), after `operations` in order."""

    depth: ClassVar[int] = 0

    node_id: str
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known when the graph was built: JSON, or in the graph of a run any Python object.

    to_json: makes JSON of such an object, of which whoever reads the graph will make an equal one; raises FormatError where
    there is none.
    """

    depth: ClassVar[int] = 0

    value: Any
    to_json: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list (or tuple) of expressions. depth: how many levels of expressions it has. Raises GraphError above MAX_DATA_DEPTH."""

    items: tuple[Expression, ...]
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _levels(self.items))


@dataclass(frozen=True, slots=True)
class DictOf:
    """A dict with string keys; order is kept. depth: see `ListOf`."""

    items: tuple[tuple[str, Expression], ...]
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _levels([item for _, item in self.items]))


@dataclass(frozen=True, slots=True)
class Concat:
    """Texts joined without a separator; what a formatted string with references in it becomes. depth: see `ListOf`."""

    parts: tuple[Expression, ...]
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _levels(self.parts))


def _levels(inside: Iterable[Expression]) -> int:
    """Of an expression with these in it."""
    depth = 1 + max([expression.depth for expression in inside], default=0)
    if depth > MAX_DATA_DEPTH:
        raise GraphError(
            f"an expression has lists, dicts or texts in each other more than {MAX_DATA_DEPTH} deep",
            hint="a flatter form",
        )
    return depth


def is_too_deep(value: Any, most: int = MAX_DATA_DEPTH) -> bool:
    """Whether plain data has lists and dicts in each other more than `most` deep."""
    level, seen = [value], set[int]()
    for _ in range(most + 1):
        holders = [
            item for item in level if isinstance(item, (list, tuple, dict, set, frozenset)) and id(item) not in seen
        ]
        if not holders:
            return False
        seen.update(map(id, holders))
        level = [inner for item in holders for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def is_data(value: Any) -> bool:
    """Whether it is made of what JSON has: nothing else can come out of a model's text."""
    waiting, seen = [value], set[int]()  # a list that holds itself is looked at once
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is list or kind is dict:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if kind is dict and any(type(key) is not str for key in value):
                return False
            waiting.extend(value if kind is list else value.values())
        elif not (math.isfinite(value) if kind is float else kind in (str, int, bool, type(None))):
            return False
    return True


Expression: TypeAlias = Constant | Reference | ListOf | DictOf | Concat


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain text. Never parsed for control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Text tokenized with control tokens on: only `raw(...)` makes these."""

    text: str


Piece: TypeAlias = Plain | Raw | Reference


def references_in(expression: Expression | Piece | str | None) -> Iterator[Reference]:
    """Every reference an expression, piece or choice mentions, in reading order."""
    match expression:
        case Reference():
            yield expression
        case ListOf(items) | Concat(items):
            for item in items:
                yield from references_in(item)
        case DictOf(pairs):
            for _, item in pairs:
                yield from references_in(item)
        case _:
            return
