"""What a value is while tracing."""

from __future__ import annotations

from ..ir.nodes import Reference

TAG_BEGIN, TAG_END = "\ufdd0", "\ufdd1"  # noncharacters: in no text that a user writes


class Abstract(str):
    """A value that does not exist yet, standing in for text. `reference`: where it will come from."""

    __slots__ = ("reference",)

    reference: Reference

    def __new__(cls, number: int, reference: Reference) -> Abstract:
        """The stand-in with the trace's tag number."""
        value = super().__new__(cls, f"{TAG_BEGIN}{number}{TAG_END}")
        value.reference = reference
        return value
