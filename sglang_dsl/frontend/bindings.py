"""What names and handles stand for: a node, and how its outcome becomes the value that is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..ir.execution import MISSING, Outcome
from ..ir.nodes import Concat, Constant, Expression, ListOf, Reference
from ..ir.specs import JoinMode

Convert: TypeAlias = Callable[[Any], Any]
LIST_MODES = frozenset({"all", "settle", "first"})


class Bound:
    """One assignment: the value of a node. `source`: the call or name it stands for in messages.

    earlier, earlier_of_handle: what its name and its handle stood for before; set once, when it is bound.
    """

    __slots__ = ("convert", "earlier", "earlier_of_handle", "node_id", "source")

    def __init__(self, node_id: str, convert: Convert | None = None, source: object = None) -> None:
        self.node_id = node_id
        self.convert = convert
        self.source = source
        self.earlier: Bound | None = None
        self.earlier_of_handle: Bound | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        if self.source is None:
            return self.node_id
        return self.source if isinstance(self.source, str) else repr(self.source)

    @property
    def expression(self) -> Expression:
        """How other nodes mention it."""
        return Reference(self.node_id)

    def finish(self, outcome: Outcome) -> Any:
        """The value the user reads."""
        return self.typed(outcome.value)

    def typed(self, value: Any) -> Any:
        """JSON-like data as the type that was asked for."""
        return value if self.convert is None else self.convert(value)


class Gathered(Bound):
    """The value of a join. `parts`: per branch what it bound, or None.

    A branch whose own value is a plain join's list is spliced into the list, so that gathering through several levels
    of forks does not nest lists (`spliced`, by branch; off with `nested=True`). For the graph such a branch's value is
    the ListOf its leaves.
    """

    __slots__ = ("leaves", "mode", "parts", "spliced")

    def __init__(
        self, node_id: str, parts: Sequence[Bound | None], mode: JoinMode, *, label: object = None, nested: bool = False
    ) -> None:
        super().__init__(node_id, None, label)
        self.parts = parts
        self.mode = mode
        self.spliced = [not nested and isinstance(part, Gathered) and part.mode == "all" for part in parts]
        self.leaves: list[Bound | None] = []  # what the list is made of, in order
        for part, spliced in zip(parts, self.spliced, strict=True):
            self.leaves.extend(part.leaves if spliced and isinstance(part, Gathered) else (part,))

    def finish(self, outcome: Outcome) -> Any:
        """A list in branch order, or the one value that the mode decided on."""
        if self.mode == "concat":
            return outcome.text
        if self.mode not in LIST_MODES:
            index = outcome.winners[0] if outcome.winners else 0
            return self._one(index, outcome.value)
        values: list[Any] = outcome.value
        indexes = range(len(values)) if len(values) == len(self.parts) else sorted(outcome.winners or ())
        finished: list[Any] = []
        for index, value in zip(indexes, values, strict=True):
            if self.spliced[index] and isinstance(value, list):
                finished.extend(self._one(index, value))
            else:
                finished.append(self._one(index, value))
        return finished

    def typed(self, value: Any) -> Any:
        """Its list inside another join's value."""
        if self.mode not in LIST_MODES or not isinstance(value, list):
            return value
        leaves = [leaf for leaf in self.leaves if leaf is not None]
        if len(leaves) != len(value):
            return value
        return [_one(leaf, item) for leaf, item in zip(leaves, value, strict=True)]

    def _one(self, index: int, value: Any) -> Any:
        return _one(self.parts[index], value)


class Local(Bound):
    """A binding that no node of its own stands for: its value is made here."""

    __slots__ = ()

    def resolve(self, text_of: Callable[[str], str]) -> Any:
        """The value. `text_of`: waits for the text of a node."""
        raise NotImplementedError


class Span(Local):
    """The text of a stretch of a context path; what `var_scope` binds. `parts`: what it is made of, as expressions."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Constant | Reference], label: str) -> None:
        super().__init__("", None, label)
        self.parts = tuple(parts)

    @property
    def expression(self) -> Expression:
        """One text."""
        return Concat(self.parts)

    def resolve(self, text_of: Callable[[str], str]) -> str:
        """The texts of its parts."""
        return "".join(str(p.value) if isinstance(p, Constant) else text_of(p.node_id) for p in self.parts)


class Given(Local):
    """A value set by hand."""

    __slots__ = ("value",)

    def __init__(self, value: Any, label: str) -> None:
        super().__init__("", None, label)
        self.value = value

    @property
    def expression(self) -> Expression:
        """The value, as it is."""
        return Constant(self.value)

    def resolve(self, text_of: Callable[[str], str]) -> Any:
        """The value, as it is."""
        return self.value


def value_in_join(part: Bound | None, *, nested: bool) -> Expression | None:
    """What a Join gathers from one branch."""
    if part is None:
        return None
    if isinstance(part, Gathered) and part.mode == "all" and not nested:
        return ListOf(tuple(leaf.expression for leaf in part.leaves if leaf is not None))
    return part.expression


def _one(part: Bound | None, value: Any) -> Any:
    if part is None or value is MISSING or isinstance(value, BaseException):
        return value
    return part.typed(value)


def history(bound: Bound, *, of_handle: bool) -> list[Bound]:
    """What a name (or handle) stood for so far, oldest first."""
    found: list[Bound] = []
    current: Bound | None = bound
    while current is not None:
        found.append(current)
        current = current.earlier_of_handle if of_handle else current.earlier
    return found[::-1]
