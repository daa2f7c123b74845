"""What a node can mention: constants, values of other nodes, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


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

    node_id: str
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known when the graph was built: JSON, or in the graph of a run any Python object.

    to_json: makes JSON of such an object, of which whoever reads the graph will make an equal one; raises FormatError where
    there is none.
    """

    value: Any
    to_json: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list (or tuple) of expressions."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class DictOf:
    """A dict with string keys; order is kept."""

    items: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Texts joined without a separator; what a formatted string with references in it becomes."""

    parts: tuple[Expression, ...]


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
