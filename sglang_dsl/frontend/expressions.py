"""What can be appended to a state: expressions, combined with `+` and appended with `s += ...`; and lazy values.

An expression is immutable, and inert until it is appended; each append makes new nodes of it, also of the same object
(`statement.py` says which). Expressions hash and compare by identity, so that a state can be asked for the value of one.

A Lazy is what joins and tool calls give: a value that is waited for on first use. It can be handed on, returned, mentioned
in text (`s += joined` does not wait) and awaited; any other use waits for the value and acts on it.
"""

from __future__ import annotations

import json
import math
import operator
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from ..errors import ProgramError
from ..ir.nodes import Expression as DataExpression
from ..ir.nodes import Piece
from ..ir.operations import text_of
from .call_sites import caller_origin, user_origin

if TYPE_CHECKING:
    from .bindings import Convert, NodeBinding

T = TypeVar("T")
V = TypeVar("V")
T_co = TypeVar("T_co", covariant=True)


class Expression:
    """Base of what `s += ...` takes besides plain strings."""

    __slots__ = ()

    def __add__(self, other: Any) -> Chain:
        return Chain((self, *other.parts) if type(other) is Chain else (self, other))

    def __radd__(self, other: Any) -> Chain:
        return Chain((other, self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression):
            return self is other
        raise ProgramError(
            f"{self!r} was compared with {other!r}, but it has no value",
            hint="append it, then compare s[...]",
            origin=caller_origin(),
        )

    __hash__ = object.__hash__

    def __str__(self) -> str:
        raise ProgramError(
            f"{self!r} was turned into a string, but it has no text before the model has run",
            hint='append it: s += "text" + gen(...); afterwards s[name] is its text',
            origin=caller_origin(),
        )

    def __format__(self, spec: str) -> str:
        return str(self)

    def __bool__(self) -> NoReturn:
        raise ProgramError(
            f"{self!r} was used as a condition, but it has no value",
            hint="append it, then read s[...]",
            origin=caller_origin(),
        )

    def __iter__(self) -> NoReturn:
        raise ProgramError(f"{self!r} cannot be iterated", hint="append it, then read s[...]", origin=caller_origin())


class Chain(Expression):
    """Expressions one after the other; what `+` makes. Flat, so that long sums do not nest."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __add__(self, other: Any) -> Chain:
        return Chain((*self.parts, *other.parts) if type(other) is Chain else (*self.parts, other))

    def __radd__(self, other: Any) -> Chain:
        return Chain((other, *self.parts))

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


class RawText(Expression):
    """Text tokenized with control tokens on; made by `raw(...)` only."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"raw({self.text!r})"


class Mention(Expression):
    """The value of something appended earlier, without waiting for it; made by `s.ref(x)`."""

    __slots__ = ("bound", "label", "pieces")

    def __init__(self, pieces: tuple[Piece, ...], label: str, bound: NodeBinding | None = None) -> None:
        self.pieces = pieces
        self.label = label
        self.bound = bound  # what is mentioned, where it is one value

    def __repr__(self) -> str:
        return f"ref({self.label})"


class Handle(Expression, Generic[T_co]):
    """A call that binds a value: append it with `s += handle`, read it with `s[handle]`. T is the value's type.

    name: under which the value can be read too, or None.
    """

    __slots__ = ("name",)

    name: str | None


class Generation(Handle[T_co]):
    """A model call that writes text; made by `gen(...)`."""

    __slots__ = ("check", "convert", "fields", "given", "n")

    def __init__(
        self,
        name: str | None,
        fields: dict[str, Any],
        *,
        convert: Convert | None,
        check: tuple[str, Callable[..., Any]] | None,
        n: int | None,
        given: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.given = given  # names of the sampling options that were not left out
        self.fields = fields  # of the Gen node, ready made
        self.convert = convert
        self.check = check
        self.n = n

    def __repr__(self) -> str:
        return f"gen({self.name!r})" if self.name else "gen()"


class Deferred(Handle[T_co]):
    """A call that takes what it leaves out from the run around it, so that it is one of ours only when it is appended."""

    __slots__ = ()

    def made(self) -> Generation[Any]:
        """The call."""
        raise NotImplementedError

    def follows(self, bound: NodeBinding) -> Iterable[Piece | tuple[Handle[Any], NodeBinding]]:
        """What is said and bound after it. `bound`: what the call's name stands for."""
        return ()


class Selection(Handle[T_co]):
    """The best of several texts under the model; made by `select(...)`."""

    __slots__ = ("choices", "convert", "method", "model")

    def __init__(
        self,
        name: str | None,
        choices: tuple[str | Mention, ...],
        *,
        method: str,
        model: str | None,
        convert: Convert | None = None,
    ) -> None:
        self.name = name
        self.convert = convert
        self.choices = choices
        self.method = method
        self.model = model

    def __repr__(self) -> str:
        return f"select({self.name!r}, ...)"


class WholeTurn(Expression):
    """A whole turn: role, content, end of role."""

    __slots__ = ("content", "role")

    def __init__(self, role: str, content: tuple[Any, ...]) -> None:
        self.role = role
        self.content = content

    def __repr__(self) -> str:
        return f"{self.role}({', '.join(map(repr, self.content))})"


class TurnBegin(Expression):
    """The opening of a turn on its own; closed by the matching end."""

    __slots__ = ("role",)

    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"role_begin({self.role!r})"


class TurnEnd(Expression):
    """The end of a turn opened before."""

    __slots__ = ("role",)

    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"role_end({self.role!r})"


class Image(Expression):
    """An image. No backend of this version takes one: appending it says so by name."""

    __slots__ = ("source",)

    def __init__(self, source: object) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"image({self.source!r})"


# --- lazy values ------------------------------------------------------------------------------------------------------


class BindingReader(Protocol):
    """Who can wait for a binding."""

    def read(self, bound: NodeBinding, timeout_s: float | None = None) -> Any:
        """Its value."""

    async def aread(self, bound: NodeBinding) -> Any:
        """Its value, without blocking the loop."""


class Lazy(Expression, Generic[V]):
    """A value that may not exist yet.

    Reading raises what failed: a JoinError (which holds every branch's value or error), a ToolError, ...
    """

    __slots__ = ("_reader", "bound")

    def __init__(self, reader: BindingReader, bound: NodeBinding) -> None:
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
            raise ProgramError(
                f"json.dumps was given {self!r}, which is not the value itself",
                hint="json.dumps(x.value), or s.json(x), which does not wait",
                origin=user_origin(),  # the line behind json's own
            )
        return type(self)

    if TYPE_CHECKING:  # made below, from the tables of operators

        def __abs__(self) -> Any: ...

        __ceil__ = __floor__ = __invert__ = __neg__ = __pos__ = __reversed__ = __trunc__ = __abs__

        def __complex__(self) -> complex: ...
        def __float__(self) -> float: ...
        def __index__(self) -> int: ...
        def __int__(self) -> int: ...
        def __len__(self) -> int: ...
        def __round__(self, digits: int | None = None) -> Any: ...
        def __contains__(self, item: object) -> bool: ...
        def __ge__(self, other: Any) -> Any: ...

        __getitem__ = __gt__ = __le__ = __lt__ = __and__ = __divmod__ = __floordiv__ = __lshift__ = __mod__ = __ge__
        __mul__ = __or__ = __pow__ = __rshift__ = __sub__ = __truediv__ = __xor__ = __matmul__ = __rand__ = __ge__
        __rdivmod__ = __rfloordiv__ = __rlshift__ = __rmod__ = __rmul__ = __ror__ = __rpow__ = __rrshift__ = __ge__
        __rsub__ = __rtruediv__ = __rxor__ = __rmatmul__ = __ge__


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

        bound: NodeBinding

        def __init__(self, reader: BindingReader, bound: NodeBinding) -> None: ...

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
