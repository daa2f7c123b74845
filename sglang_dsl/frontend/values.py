"""What a value is while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.nodes import Reference

TAG_BEGIN, TAG_END = "\ufdd0", "\ufdd1"  # noncharacters: in no text that a user writes


class Forced(BaseException):
    """Python asked something of a value that does not exist yet. Not an Exception: no body's `except` may swallow it."""

    def __init__(self, reference: Reference, asked: str) -> None:
        super().__init__(asked)
        self.reference = reference
        self.asked = asked


class Abstract(str):
    """A value that does not exist yet, standing in for text. `reference`: where it will come from.

    It can be appended, formatted and added to strings; what would need the value itself raises `Forced`.
    """

    __slots__ = ("reference",)

    reference: Reference

    def __new__(cls, number: int, reference: Reference) -> Abstract:
        """The stand-in with the trace's tag number."""
        value = super().__new__(cls, f"{TAG_BEGIN}{number}{TAG_END}")
        value.reference = reference
        return value


def _forcing(name: str) -> Callable[..., Any]:
    def force(self: Abstract, *args: Any, **kwargs: Any) -> Any:
        raise Forced(self.reference, name)

    force.__name__ = name
    return force


_PASSING = frozenset(  # what leaves the tag whole
    [
        "__new__",
        "__init__",
        "__init_subclass__",
        "__subclasshook__",
        "__class__",
        "__doc__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__dir__",
        "__add__",
        "__str__",
        "__format__",
        "__repr__",
        "__reduce__",
        "__reduce_ex__",
        "__getnewargs__",
        "__sizeof__",
        "__getstate__",
    ]
)
for _name in [*dir(str), "__bool__", "__int__", "__float__", "__index__"]:
    if _name not in _PASSING:
        setattr(Abstract, _name, _forcing(_name))
