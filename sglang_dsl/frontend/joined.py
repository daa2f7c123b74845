"""Values that are waited for on first use: what joins and tool calls give.

A Lazy can be handed on, returned, mentioned in text (`s += joined` mentions it without waiting) and awaited; any other
use waits for the value and acts on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..ir.nodes import Expression as DataExpression
from .bindings import Bound
from .expressions import Draft, Expression

V = TypeVar("V")
T = TypeVar("T")


class Reader(Protocol):
    """Who can wait for a binding."""

    def read(self, bound: Bound, timeout_s: float | None = None) -> Any:
        """Its value."""

    async def aread(self, bound: Bound) -> Any:
        """Its value, without blocking the loop."""


class Lazy(Expression, Generic[V]):
    """A value that may not exist yet.

    Reading raises what failed: a JoinError (which holds every branch's value or error), a ToolError, ...
    """

    __slots__ = ("_reader", "bound")

    def __init__(self, reader: Reader, bound: Bound) -> None:
        self._reader = reader
        self.bound = bound

    @property
    def value(self) -> V:
        """The value; waits for it."""
        found: V = self._reader.read(self.bound)
        return found

    def get(self, timeout_s: float | None = None) -> V:
        """The value; waits at most `timeout_s`. Raises DeadlineError."""
        found: V = self._reader.read(self.bound, timeout_s)
        return found

    def __await__(self) -> Generator[Any, None, V]:
        return self._reader.aread(self.bound).__await__()

    def write(self, draft: Draft) -> None:
        """Mention the value: text as it is, all else as JSON."""
        for piece in self.bound.pieces:
            draft.say(piece)

    @property
    def expression(self) -> DataExpression:
        """How a node mentions it."""
        return self.bound.expression

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.bound.label}>"

    def __str__(self) -> str:  # unlike other expressions, this one has a value
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __bool__(self) -> bool:  # type: ignore[override]
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Lazy) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def __int__(self) -> int:
        return int(self.value)  # type: ignore[call-overload,no-any-return]

    def __index__(self) -> int:
        return self.value.__index__()  # type: ignore[attr-defined,no-any-return]

    def __float__(self) -> float:
        return float(self.value)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.value)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.value)  # type: ignore[call-overload,no-any-return]

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]  # type: ignore[index]

    def __contains__(self, item: object) -> bool:
        return item in self.value  # type: ignore[operator]


if TYPE_CHECKING:

    class Joined(list[T]):
        """A list that a join gathers. For a type checker it is a `list[T]`; at runtime a Lazy that behaves like one."""

        bound: Bound

        def __init__(self, reader: Reader, bound: Bound) -> None: ...

        @property
        def value(self) -> list[T]:
            """The list; waits for it."""

        def get(self, timeout_s: float | None = None) -> list[T]:
            """The list; waits at most `timeout_s`."""

        def __await__(self) -> Generator[Any, None, list[T]]: ...

else:

    class Joined(Lazy[list[T]], Sequence[T]):
        """A list that a join gathers, in branch order. Equal to a list of the same items."""

        __slots__ = ()

        __hash__ = None
