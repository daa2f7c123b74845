"""What names and handles stand for: a node, and how its outcome becomes the value that is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Generic, TypeAlias, TypeVar

from ..ir.execution import MISSING, Outcome
from ..ir.nodes import Concat, Constant, Expression, ListOf, Operation, Piece, Plain, Reference
from ..ir.operations import splice, text_of
from ..ir.outcome import AppendedText, PathText
from ..ir.specs import JoinMode

K = TypeVar("K")
Convert: TypeAlias = Callable[[Any], Any]
LIST_MODES = frozenset({"all", "settle", "first"})


_NOT_YET: Any = object()
_KEEPING = threading.Lock()


class NodeBinding:
    """One assignment: the value of a node. `source`: the call or name it stands for in messages.

    context: of the statement, for `convert`, which may be a user's own code (a pydantic validator, an Enum's `_missing_`).
    earlier, earlier_of_handle: what its name and its handle stood for before; set once, when it is bound.
    judged: gives where its outcome will be, where the run itself converts the value to know whether it is accepted.
    """

    __slots__ = ("_made", "_made_of", "context", "convert", "earlier", "earlier_of_handle", "judged", "node_id", "source")  # fmt: skip

    def __init__(self, node_id: str, convert: Convert | None = None, source: object = None) -> None:
        self.node_id = node_id
        self.judged: Callable[[], Future[Outcome] | None] | None = None
        self.convert = convert
        self.context = None if convert is None else copy_context()
        self.source = source
        self.earlier: NodeBinding | None = None
        self.earlier_of_handle: NodeBinding | None = None
        self._made: Any = _NOT_YET
        self._made_of: Any = _NOT_YET

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

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """How text mentions it, without waiting."""
        return (self.expression,) if isinstance(self.expression, Reference) else ()

    def finish(self, outcome: Outcome) -> Any:
        """The value the user reads: the same object each time."""
        return outcome.value if self.convert is None else self.typed(outcome.value)

    def typed(self, value: Any) -> Any:
        """JSON-like data as the type that was asked for; of the value of its node, the same object each time."""
        if self.convert is None:
            return value
        if self.has_made(value):
            return self._made
        made = self.convert(value) if self.context is None else self.context.copy().run(self.convert, value)
        return self._keep(value, made)

    def has_made(self, value: Any) -> bool:
        """Whether this very value was converted already, by the run or by a reader."""
        judged = None if self.judged is None else self.judged()
        if judged is not None and judged.done():
            if not judged.cancelled() and judged.exception() is None and (accepted := judged.result().accepted):
                self._keep(judged.result().value, accepted.made)
            self.judged = None
        return self._made_of is value

    def _keep(self, value: Any, made: Any) -> Any:
        """The first of what readers have made of it at the same time."""
        with _KEEPING:
            if self._made_of is _NOT_YET:
                self._made, self._made_of = made, value
            return self._made if self._made_of is value else made


class JoinBinding(NodeBinding):
    """The value of a join. `parts`: per branch what it bound since the fork, or None. `skipped`: branches that took no part.

    Where a plain join gathers what is itself a plain join's list, that list's items stand in its place (`nested=True`: the
    list does), so that gathering through several levels of forks does not nest lists. The node's own value always is
    one item per branch; what every mention of this binding means is that value with the lists at `spliced` spliced in.
    """

    __slots__ = ("flat", "leaves", "mode", "parts", "skipped", "spliced")

    def __init__(
        self,
        node_id: str,
        parts: Sequence[NodeBinding | None],
        mode: JoinMode,
        *,
        label: object = None,
        nested: bool = False,
        skipped: Sequence[int] = (),
    ) -> None:
        super().__init__(node_id, None, label)
        self.parts = parts
        self.mode = mode
        self.skipped = frozenset(skipped)
        listed = [parts[index] for index in self.listed(())]
        self.flat = mode == "all" and not nested
        self.spliced = tuple(i for i, part in enumerate(listed) if self.flat and _is_plain_list(part))
        self.leaves: list[
            NodeBinding | None
        ] = []  # what its items are, in order, where the mode is a list of known length
        for i, part in enumerate(listed):
            self.leaves.extend(part.leaves if i in self.spliced and isinstance(part, JoinBinding) else (part,))

    def listed(self, winners: Sequence[int]) -> Sequence[int]:
        """The branches of which its list has an item each, in order."""
        match self.mode:
            case "settle":
                return range(len(self.parts))
            case "first":
                return sorted(winners)
            case "all":
                return [index for index in range(len(self.parts)) if index not in self.skipped]
        return ()

    @property
    def expression(self) -> Reference:
        """Its value, as it is read."""
        return Reference(self.node_id, (Operation("splice", self.spliced),) if self.spliced else ())

    def taken_of(self, part: NodeBinding | None) -> Expression | None:
        """What the Join node gathers of a branch. Of a list whose items are spliced in, the items themselves where there are
        no gaps, so that joins of joins do not wait for each other one by one.
        """
        if part is None:
            return None
        if isinstance(part, JoinBinding) and self.flat and _is_plain_list(part):
            items = [leaf.expression for leaf in part.leaves if leaf is not None]
            if len(items) == len(part.leaves):
                return ListOf(tuple(items))
        return part.expression

    def calls(self, winners: Sequence[int]) -> Iterator[NodeBinding]:
        """What it gathered, through all inner joins, in order; of a mode that decides only what won."""
        if self.mode in ("all", "settle"):
            waiting = list(reversed(self.leaves))
        else:
            waiting = [self.parts[index] for index in sorted(winners, reverse=True)]
        while waiting:
            part = waiting.pop()
            if isinstance(part, JoinBinding):
                waiting.extend(reversed(part.leaves))
            elif part is not None:
                yield part

    def finish(self, outcome: Outcome) -> Any:
        """A list in branch order, or the one value that the mode decided on."""
        if self.mode == "concat":
            return outcome.text
        return self._made if self._made_of is outcome else self._keep(outcome, self._read(outcome))

    def _read(self, outcome: Outcome) -> Any:
        if self.mode not in LIST_MODES:
            return _typed(self.parts[outcome.winners[0]] if outcome.winners else None, outcome.value)
        if self.mode == "all":
            return self.typed(splice(outcome.value, *self.spliced))
        parts = [self.parts[index] for index in self.listed(outcome.winners or ())]
        return [_typed(part, item) for part, item in zip(parts, outcome.value, strict=True)]

    def typed(self, value: Any) -> Any:
        """Its value inside another join's."""
        return _typed(self, value)

    def inner(self, value: Any) -> Sequence[NodeBinding | None] | NodeBinding | None:
        """Whose the items of a value of it are: one for each, or one for the value as a whole."""
        if self.mode in ("all", "settle"):
            return self.leaves if isinstance(value, list) and len(value) == len(self.leaves) else None
        some = [part for part in self.parts if part is not None]
        alike = some[0] if all(type(p) is type(some[0]) and p.convert == some[0].convert for p in some) else None
        if self.mode != "first" or not isinstance(value, list):
            return next((part for part in some if part.has_made(value)), alike)
        return [next((part for part in some if part.has_made(item)), alike) for item in value]


class LocalBinding(NodeBinding):
    """A binding that no node of its own stands for: its value is made here."""

    __slots__ = ()

    def resolve(self, said_at: Callable[[str], AppendedText]) -> Any:
        """The value. `said_at`: waits for what a node says."""
        raise NotImplementedError


class SpanBinding(LocalBinding):
    """The text of a stretch of a context path; what `var_scope` binds. `parts`: what it is made of, as expressions."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Constant | Reference], label: str) -> None:
        super().__init__("", None, label)
        self.parts = tuple(parts)

    @property
    def expression(self) -> Expression:
        """One text."""
        return Concat(self.parts)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its parts."""
        return tuple(Plain(str(part.value)) if isinstance(part, Constant) else part for part in self.parts)

    def resolve(self, said_at: Callable[[str], AppendedText]) -> str:
        """The texts of its parts, as one text."""
        whole = PathText()
        for part in self.parts:
            if isinstance(part, Constant):
                whole.add(str(part.value))
            else:
                said = said_at(part.node_id)
                whole.add(said.text, said.torn)
        return whole.text


class ManualBinding(LocalBinding):
    """A value set by hand."""

    __slots__ = ("value",)

    def __init__(self, value: Any, label: str) -> None:
        super().__init__("", None, label)
        self.value = value

    @property
    def expression(self) -> Expression:
        """The value, as it is."""
        return Constant(self.value)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The value as text."""
        return (Plain(text_of(self.value)),)

    def resolve(self, said_at: Callable[[str], AppendedText]) -> Any:
        """The value, as it is."""
        return self.value


def _is_plain_list(part: NodeBinding | None) -> bool:
    return isinstance(part, JoinBinding) and part.mode == "all"


def _typed(part: NodeBinding | None, value: Any) -> Any:
    """What a user reads of a value that `part` has inside a join. Joins nest as deep as a program likes, so no recursion."""
    found: list[Any] = [value]
    waiting: list[tuple[NodeBinding | None, Any, list[Any], int]] = [(part, value, found, 0)]
    while waiting:
        part, value, into, at = waiting.pop()
        if part is None or value is MISSING or isinstance(value, BaseException):
            into[at] = value
        elif not isinstance(part, JoinBinding):
            into[at] = part.typed(value)
        else:
            inner = part.inner(value)
            if isinstance(inner, Sequence):
                into[at] = items = list(value)
                waiting.extend((one, item, items, i) for i, (one, item) in enumerate(zip(inner, value, strict=True)))
            else:
                waiting.append((inner, value, into, at))
    return found[0]


def history(bound: NodeBinding, *, of_handle: bool) -> list[NodeBinding]:
    """What a name (or handle) stood for so far, oldest first."""
    found: list[NodeBinding] = []
    current: NodeBinding | None = bound
    while current is not None:
        found.append(current)
        current = current.earlier_of_handle if of_handle else current.earlier
    return found[::-1]


class Bindings(Generic[K]):
    """What names (or handles) stand for on one context path. A fork costs the same however much is bound.

    own: what was bound on this path since the fork that it began with, each to its latest; this is what a branch has to
    offer its joins, everywhere. What it began with is shared with the parent and its other branches, in layers that never
    change and at least double in size from the newest to the oldest, so that there are few to look into.
    """

    __slots__ = ("_before", "_fresh", "_shared", "own")

    def __init__(self, before: tuple[dict[K, NodeBinding], ...] = ()) -> None:
        self.own: dict[K, NodeBinding] = {}
        self._before = before
        self._shared = before  # what a branch that forks off now begins with, but for `_fresh`
        self._fresh: dict[K, NodeBinding] = {}

    def bind(self, key: K, bound: NodeBinding) -> None:
        """Make a name stand for something from here on."""
        self.own[key] = bound
        self._fresh[key] = bound

    def get(self, key: K) -> NodeBinding | None:
        """What it stands for, or None."""
        found = self.own.get(key)
        if found is None:
            for layer in reversed(self._before):
                found = layer.get(key)
                if found is not None:
                    return found
        return found

    def branch(self) -> Bindings[K]:
        """Of a path that forks off here: it begins with all there is, and has nothing of its own."""
        if self._fresh:
            layers, newest = list(self._shared), self._fresh
            while layers and len(layers[-1]) < 2 * len(newest):
                newest = {**layers.pop(), **newest}
            self._shared = (*layers, newest)
            self._fresh = {}
        return Bindings(self._shared)

    def copy(self) -> Bindings[K]:
        """The same, to go on apart."""
        copy = Bindings(self._before)
        copy.own = dict(self.own)
        copy._shared, copy._fresh = self._shared, dict(self._fresh)
        return copy

    def items(self) -> Iterable[tuple[K, NodeBinding]]:
        """Everything bound, in the order in which it was first."""
        found: dict[K, NodeBinding] = {}
        for layer in self._before:
            found.update(layer)
        return {**found, **self.own}.items()

    def __contains__(self, key: object) -> bool:
        return key in self.own or any(key in layer for layer in self._before)

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, _ in self.items()])


Find: TypeAlias = Callable[[Any], NodeBinding]  # what a handle stands for; raises UnknownNameError
