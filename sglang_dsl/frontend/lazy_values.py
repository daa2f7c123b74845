"""Values that are waited for on first use: what joins and tool calls give.

A Lazy can be handed on, returned, mentioned in text (`s += joined` mentions it without waiting) and awaited; any other
use waits for the value and acts on it.
"""

from __future__ import annotations

import json
import math
import operator
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..errors import ProgramError
from ..ir.nodes import Expression as DataExpression
from ..ir.semantics import text_of
from .bindings import Bound
from .expressions import Chain, Draft, Expression

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

    def get(self, *args: Any, timeout_s: float | None = None, **options: Any) -> Any:
        """`x.get()` is the value; waits at most `timeout_s`, or raises DeadlineError. With other arguments it is the value's own
        `get`: `x.get("a", 0)` of a dict. A number alone is a time limit where the value has no `get`.
        """
        alone = args[0] if len(args) == 1 and not options else None
        limited = isinstance(alone, (int, float)) and not isinstance(alone, bool)
        value = self._reader.read(self.bound, alone if limited and timeout_s is None else timeout_s)
        if not args and not options:
            return value
        return value if limited and not hasattr(value, "get") else value.get(*args, **options)

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
        return bool(self.value == _plain(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.value != _plain(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.value)  # type: ignore[call-overload,no-any-return]

    def __setitem__(self, key: Any, item: Any) -> None:
        self.value[key] = item  # type: ignore[index]

    def __delitem__(self, key: Any) -> None:
        del self.value[key]  # type: ignore[attr-defined]

    def __add__(self, other: Any) -> Any:
        """With a text it is a text that mentions it, without waiting. With all else that has a value it is the sum."""
        if isinstance(other, str):
            return LazyText((self, other))
        if isinstance(other, Expression) and not isinstance(other, (Lazy, LazyText)):
            return Expression.__add__(self, other)
        return operator.add(self.value, _plain(other))

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, str):
            return LazyText((other, self))
        return Expression.__radd__(self, other) if isinstance(other, Expression) else other + self.value

    def __getattr__(self, name: str) -> Any:
        """What the value has of that name: `hits.split()`, `order.total`. Waits for it."""
        if (name.startswith("__") and name.endswith("__")) or name.startswith(("_repr_", "_ipython_", "_reader")):
            raise AttributeError(name)  # Python and notebooks ask for these of everything
        return getattr(self.value, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Its own. `json.dumps` asks for it before it gives up, and is told what to write."""
        if sys._getframe(1).f_code is _JSON_GIVES_UP:
            from .call_sites import user_origin  # the line behind json's own

            raise ProgramError(
                f"json.dumps was given {self!r}, which is not the value itself",
                hint="json.dumps(x.value), or s.json(x), which does not wait",
                origin=user_origin(),
            )
        return type(self)

    if TYPE_CHECKING:  # made below, from the tables of operators

        def __abs__(self) -> Any: ...
        def __ceil__(self) -> Any: ...
        def __complex__(self) -> complex: ...
        def __float__(self) -> float: ...
        def __floor__(self) -> Any: ...
        def __index__(self) -> int: ...
        def __int__(self) -> int: ...
        def __invert__(self) -> Any: ...
        def __len__(self) -> int: ...
        def __neg__(self) -> Any: ...
        def __pos__(self) -> Any: ...
        def __reversed__(self) -> Any: ...
        def __round__(self, digits: int | None = None) -> Any: ...
        def __trunc__(self) -> Any: ...
        def __contains__(self, item: object) -> bool: ...
        def __ge__(self, other: Any) -> Any: ...
        def __getitem__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __and__(self, other: Any) -> Any: ...
        def __divmod__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __lshift__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __or__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rshift__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __xor__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __rand__(self, other: Any) -> Any: ...
        def __rdivmod__(self, other: Any) -> Any: ...
        def __rfloordiv__(self, other: Any) -> Any: ...
        def __rlshift__(self, other: Any) -> Any: ...
        def __rmod__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __ror__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __rrshift__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __rxor__(self, other: Any) -> Any: ...
        def __rmatmul__(self, other: Any) -> Any: ...


_JSON_GIVES_UP = json.JSONEncoder.default.__code__


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, (Lazy, LazyText)) else value


class LazyText(Chain):
    """A text with lazy values in it: appended without waiting; any other use waits, and acts on the text."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The text; waits for the values in it."""
        return "".join(text_of(_plain(part)) for part in self.parts)

    def __add__(self, other: Any) -> Chain:
        if isinstance(other, (str, Lazy)):
            return LazyText((*self.parts, other))
        if isinstance(other, LazyText):
            return LazyText((*self.parts, *other.parts))
        return super().__add__(other)

    def __radd__(self, other: Any) -> Chain:
        return LazyText((other, *self.parts)) if isinstance(other, (str, Lazy)) else super().__radd__(other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __bool__(self) -> bool:  # type: ignore[override]
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.value)


def _unary(function: Callable[[Any], Any]) -> Any:
    def method(self: Lazy[Any], *args: Any) -> Any:
        return function(self.value, *args)

    return method


def _binary(function: Callable[[Any, Any], Any]) -> Any:
    def method(self: Lazy[Any], other: Any) -> Any:
        return function(self.value, _plain(other))

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Any:
    def method(self: Lazy[Any], other: Any) -> Any:
        return function(_plain(other), self.value)

    return method


# Every operator that an int, a float, a str, a list or a dict has; a test compares the lists.
_UNARY: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "complex": complex, "float": float, "floor": math.floor, "index": operator.index,
    "int": int, "invert": operator.invert, "len": len, "neg": operator.neg, "pos": operator.pos, "reversed": reversed,
    "round": round, "trunc": math.trunc,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "contains": operator.contains, "ge": operator.ge, "getitem": operator.getitem, "gt": operator.gt, "le": operator.le,
    "lt": operator.lt,
}  # fmt: skip
_BOTH_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_, "divmod": divmod, "floordiv": operator.floordiv, "lshift": operator.lshift,
    "mod": operator.mod, "mul": operator.mul, "or": operator.or_, "pow": pow, "rshift": operator.rshift,
    "sub": operator.sub, "truediv": operator.truediv, "xor": operator.xor, "matmul": operator.matmul,
}  # fmt: skip
for _kind in (Lazy, LazyText):
    for _name, _function in _UNARY.items():
        setattr(_kind, f"__{_name}__", _unary(_function))
    for _name, _function in (*_BINARY.items(), *_BOTH_WAYS.items()):
        setattr(_kind, f"__{_name}__", _binary(_function))
    for _name, _function in _BOTH_WAYS.items():
        setattr(_kind, f"__r{_name}__", _reflected(_function))


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
