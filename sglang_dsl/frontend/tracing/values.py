"""What a value is while tracing.

Text that does not exist yet is an `Abstract`: a `str`, so that everything that takes text takes it, of which every method
is overridden. A method that makes text of text is recorded as an operation on the value's reference; anything else is a
question, which the trace answers where the value is one of a few, and breaks at where it is not. Other values are
`Unknown`s: attributes and items are recorded, text made of them is recorded, the rest are questions.

What the trace does with all this is behind `ValueTracer`; a value knows only who follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from ...ir.nodes import Json, Operation, Reference
from .shapes import NumberShape

if TYPE_CHECKING:
    from .shapes import Shape


Domain = tuple[tuple[Json, Any], ...]  # the values a reference may have: (as JSON, as it is read)
_PLAIN_FORMAT = re.compile(r"(?:[^%]|%%|%s|%r)*")  # a `%` template that puts values in as they are


class ValueTracer(Protocol):
    """Who follows what is done with abstract values: the trace that made them. `ended`: nobody does any more."""

    @property
    def ended(self) -> bool:
        """Whether the trace is over. Its values may live on in caches (of `re`, of `lru_cache`): there they equal nothing."""

    def text(self, reference: Reference, on: Reference, domain: Domain | None) -> Abstract:
        """A text value. `domain`: what it may be, by the JSON of `on`; None for anything."""

    def compound(self, text: str) -> str:
        """A text with tags in it as one value; a text without tags as it is."""

    def member(self, reference: Reference, shape: Shape) -> Any:
        """What is found inside an Unknown."""

    def ask(self, value: Abstract | Unknown, what: str, question: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`question(the value, *args)` where the value is one of a few: one answer is followed now, others in other
        runs of the body. Elsewhere the trace ends here with a Break. `what` names the question for people.
        """


def exact(text: str) -> str:
    """A plain `str` of the same characters, whatever subclass `text` is of."""
    return str.__str__(text)


def is_abstract(value: object) -> bool:
    """Whether a value does not exist yet."""
    return isinstance(value, Abstract) or type(value) is Unknown


def after(reference: Reference, name: str, *args: Json) -> Reference:
    """The reference after one more operation."""
    return Reference(reference.node_id, (*reference.operations, Operation(name, args)))


def _recorded(name: str) -> Any:
    """An overridden method that makes text of text."""
    original = getattr(str, name)

    def method(self: Abstract, *args: Any, **kwargs: Any) -> Any:
        if name == "expandtabs" and kwargs:
            args, kwargs = (*args, kwargs.pop("tabsize", 8)), kwargs
        original("", *args, **kwargs)  # Python's own complaint about wrong arguments
        constant = not kwargs and all(type(a) in (str, int, type(None)) for a in args)
        if not constant or self.reference is None:
            return self.ask(f".{name}()", original, *args)
        mapped = None if self.domain is None else tuple((raw, original(v, *args)) for raw, v in self.domain)
        return self.follower.text(after(self.reference, name, *args), self.on, mapped)

    method.__name__ = name
    return method


def _asked(name: str, what: str = "") -> Any:
    """An overridden method whose answer is no text."""
    original = getattr(str, name)

    def method(self: Abstract, *args: Any, **kwargs: Any) -> Any:
        def question(value: str, *given: Any) -> Any:
            return original(value, *given, **kwargs)

        return self.ask(what or f".{name}()", question, *args)

    method.__name__ = name
    return method


class Abstract(str):
    """Text that does not exist yet. Its own characters are tags (`tracing/shapes.py`), around what was added to it.

    reference: where it comes from; None for a text that has more in it than one value. on, domain: see `ValueTracer.text`.
    """

    __slots__ = ("domain", "follower", "on", "reference")

    follower: ValueTracer
    reference: Reference | None
    on: Reference
    domain: Domain | None

    def __new__(
        cls, text: str, follower: ValueTracer, reference: Reference | None, on: Reference, domain: Domain | None
    ) -> Abstract:
        """The stand-in that reads as `text`."""
        value = super().__new__(cls, text)
        value.follower, value.reference, value.on, value.domain = follower, reference, on, domain
        return value

    def ask(self, what: str, question: Callable[..., Any], *args: Any) -> Any:
        """The answer of a question about its text, from whoever follows it."""
        return self.follower.ask(self, what, question, args)

    # stays abstract ----------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        if self.reference is None:
            shown: str = self.ask("repr()", str.__repr__)
            return shown
        mapped = None if self.domain is None else tuple((raw, repr(v)) for raw, v in self.domain)
        return self.follower.text(after(self.reference, "repr"), self.on, mapped)

    def __format__(self, spec: str) -> str:
        if not exact(spec):
            return self
        if type(spec) is not str or self.reference is None:
            shown: str = self.ask("format()", str.__format__, spec)
            return shown
        str.__format__("", spec)
        mapped = None if self.domain is None else tuple((raw, format(v, spec)) for raw, v in self.domain)
        return self.follower.text(after(self.reference, "format", spec), self.on, mapped)

    def __add__(self, other: Any) -> Any:
        return self.follower.compound(exact(self) + exact(other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self.follower.compound(exact(other) + exact(self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        return self.follower.compound(exact(self) * times)

    __rmul__ = __mul__

    def __rmod__(self, template: Any) -> Any:
        if not isinstance(template, str):
            return NotImplemented
        if _PLAIN_FORMAT.fullmatch(exact(template)):
            return self.follower.compound(str.__mod__(exact(template), (self,)))
        return self.ask("% formatting", lambda value: str.__mod__(template, value))

    def join(self, parts: Any) -> str:
        """Its text between the parts."""
        return self.follower.compound(exact(self).join(parts))

    def __getitem__(self, key: Any) -> Any:
        bounds = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
        constant = all(type(b) in (int, type(None)) for b in bounds)
        if not constant or self.reference is None or self.domain is not None:
            return self.ask("[...]", str.__getitem__, key)
        name = "slice" if isinstance(key, slice) else "item"
        return self.follower.text(after(self.reference, name, *bounds), self.on, None)

    def __copy__(self) -> Abstract:
        return self

    def __deepcopy__(self, memo: Any) -> Abstract:
        return self

    capitalize = _recorded("capitalize")
    casefold = _recorded("casefold")
    center = _recorded("center")
    expandtabs = _recorded("expandtabs")
    ljust = _recorded("ljust")
    lower = _recorded("lower")
    lstrip = _recorded("lstrip")
    removeprefix = _recorded("removeprefix")
    removesuffix = _recorded("removesuffix")
    replace = _recorded("replace")
    rjust = _recorded("rjust")
    rstrip = _recorded("rstrip")
    strip = _recorded("strip")
    swapcase = _recorded("swapcase")
    title = _recorded("title")
    upper = _recorded("upper")
    zfill = _recorded("zfill")

    # questions ---------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        same = exact(other) == exact(self)
        return same if same or self.follower.ended else self.ask("==", str.__eq__, other)

    def __ne__(self, other: object) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        same = exact(other) == exact(self)
        return not same if same or self.follower.ended else self.ask("!=", str.__ne__, other)

    def __hash__(self) -> int:
        found: int = self.ask("hash() (a dict key, a set member)", str.__hash__)
        return found

    def __bool__(self) -> bool:
        return bool(self.ask("bool()", bool))

    def __iter__(self) -> Iterator[str]:
        return iter(self.ask("iteration", list))

    def __int__(self) -> int:
        return int(self.ask("int()", int))

    def __float__(self) -> float:
        return float(self.ask("float()", float))

    def __complex__(self) -> complex:
        return complex(self.ask("complex()", complex))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.ask("pickling", lambda value: (str, (value,)))

    def __mod__(self, values: Any) -> str:
        shown: str = self.ask("% formatting", str.__mod__, values)
        return shown

    __contains__ = _asked("__contains__", "in")
    __ge__ = _asked("__ge__", ">=")
    __getnewargs__ = _asked("__getnewargs__", "pickling")
    __gt__ = _asked("__gt__", ">")
    __le__ = _asked("__le__", "<=")
    __len__ = _asked("__len__", "len()")
    __lt__ = _asked("__lt__", "<")
    __sizeof__ = _asked("__sizeof__", "sys.getsizeof()")
    count = _asked("count")
    encode = _asked("encode")
    endswith = _asked("endswith")
    find = _asked("find")
    format = _asked("format")
    format_map = _asked("format_map")
    index = _asked("index")
    isalnum = _asked("isalnum")
    isalpha = _asked("isalpha")
    isascii = _asked("isascii")
    isdecimal = _asked("isdecimal")
    isdigit = _asked("isdigit")
    isidentifier = _asked("isidentifier")
    islower = _asked("islower")
    isnumeric = _asked("isnumeric")
    isprintable = _asked("isprintable")
    isspace = _asked("isspace")
    istitle = _asked("istitle")
    isupper = _asked("isupper")
    partition = _asked("partition")
    rfind = _asked("rfind")
    rindex = _asked("rindex")
    rpartition = _asked("rpartition")
    rsplit = _asked("rsplit")
    split = _asked("split")
    splitlines = _asked("splitlines")
    startswith = _asked("startswith")
    translate = _asked("translate")

    @staticmethod
    def maketrans(*args: Any) -> Any:
        """Of `str`: makes a table of its arguments, never of a value."""
        return str.maketrans(*args)


def _question(name: str, what: str) -> Any:
    """A special method of an Unknown: all of them are questions."""

    def method(self: Unknown, *args: Any) -> Any:
        return self._follower.ask(self, what, lambda value, *given: getattr(value, name)(*given), args)

    method.__name__ = name
    return method


class Unknown:
    """A number, list or object that does not exist yet. Passes `isinstance` for the type it will have.

    `_reference`: where it comes from. `_shape`: what is known of it.
    """

    __slots__ = ("_follower", "_reference", "_shape")

    def __init__(self, follower: ValueTracer, reference: Reference, shape: Shape) -> None:
        self._follower = follower
        self._reference = reference
        self._shape = shape

    @property
    def __class__(self) -> type:
        return getattr(self._shape, "python", None) or Unknown

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"the class of a value that does not exist yet cannot be made {kind.__name__}")

    def __repr__(self) -> str:
        return self._said("repr", "repr()")

    def __str__(self) -> str:
        return self._said("format", "str()", "")

    def __format__(self, spec: str) -> str:
        if type(spec) is not str:
            shown: str = self._follower.ask(self, "format()", format, (spec,))
            return shown
        return self._said("format", "format()", spec)

    def _said(self, operation: str, what: str, *args: str) -> str:
        """Text made of it, where the graph can make the same text of the JSON."""
        if isinstance(self._shape, NumberShape) or getattr(self._shape, "plain", False):
            reference = after(self._number, operation, *args)
            return self._follower.text(reference, reference, None)
        shown: str = self._follower.ask(self, what, repr, ())
        return shown

    @property
    def _number(self) -> Reference:
        converted = getattr(self._shape, "convert", False)
        return after(self._reference, "float") if converted else self._reference

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        members = dict(getattr(self._shape, "members", None) or ())
        if getattr(self._shape, "attributes", False) and name in members:
            return self._follower.member(after(self._reference, "attr", name), members[name])
        return self._follower.ask(self, f".{name}", getattr, (name,))

    def __getitem__(self, key: Any) -> Any:
        shape, inside = self._shape, None
        members = getattr(shape, "members", None)
        if type(key) is str and members is not None and not getattr(shape, "attributes", False):
            inside = dict(members).get(key)
        elif type(key) is int and getattr(shape, "item", None) is not None:
            inside = getattr(shape, "item", None)
        if inside is None:
            return self._follower.ask(self, "[...]", lambda value, k: value[k], (key,))
        return self._follower.member(after(self._reference, "item", key), inside)

    def __copy__(self) -> Unknown:
        return self

    def __deepcopy__(self, memo: Any) -> Unknown:
        return self

    __abs__ = _question("__abs__", "abs()")
    __add__ = _question("__add__", "+")
    __and__ = _question("__and__", "&")
    __bool__ = _question("__bool__", "bool()")
    __call__ = _question("__call__", "calling it")
    __ceil__ = _question("__ceil__", "math.ceil()")
    __complex__ = _question("__complex__", "complex()")
    __contains__ = _question("__contains__", "in")
    __delitem__ = _question("__delitem__", "del [...]")
    __divmod__ = _question("__divmod__", "divmod()")
    __eq__ = _question("__eq__", "==")
    __float__ = _question("__float__", "float()")
    __floor__ = _question("__floor__", "math.floor()")
    __floordiv__ = _question("__floordiv__", "//")
    __ge__ = _question("__ge__", ">=")
    __gt__ = _question("__gt__", ">")
    __hash__ = _question("__hash__", "hash() (a dict key, a set member)")
    __index__ = _question("__index__", "an index or range()")
    __int__ = _question("__int__", "int()")
    __invert__ = _question("__invert__", "~")
    __iter__ = _question("__iter__", "iteration")
    __le__ = _question("__le__", "<=")
    __len__ = _question("__len__", "len()")
    __lshift__ = _question("__lshift__", "<<")
    __lt__ = _question("__lt__", "<")
    __mod__ = _question("__mod__", "%")
    __mul__ = _question("__mul__", "*")
    __ne__ = _question("__ne__", "!=")
    __neg__ = _question("__neg__", "-")
    __or__ = _question("__or__", "|")
    __pos__ = _question("__pos__", "+")
    __pow__ = _question("__pow__", "**")
    __radd__ = _question("__radd__", "+")
    __rand__ = _question("__rand__", "&")
    __rdivmod__ = _question("__rdivmod__", "divmod()")
    __reduce_ex__ = _question("__reduce_ex__", "pickling")
    __reversed__ = _question("__reversed__", "reversed()")
    __rfloordiv__ = _question("__rfloordiv__", "//")
    __rlshift__ = _question("__rlshift__", "<<")
    __rmod__ = _question("__rmod__", "%")
    __rmul__ = _question("__rmul__", "*")
    __ror__ = _question("__ror__", "|")
    __round__ = _question("__round__", "round()")
    __rpow__ = _question("__rpow__", "**")
    __rrshift__ = _question("__rrshift__", ">>")
    __rshift__ = _question("__rshift__", ">>")
    __rsub__ = _question("__rsub__", "-")
    __rtruediv__ = _question("__rtruediv__", "/")
    __rxor__ = _question("__rxor__", "^")
    __setitem__ = _question("__setitem__", "[...] =")
    __sub__ = _question("__sub__", "-")
    __truediv__ = _question("__truediv__", "/")
    __trunc__ = _question("__trunc__", "math.trunc()")
    __xor__ = _question("__xor__", "^")
