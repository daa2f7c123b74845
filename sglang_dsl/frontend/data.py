"""Python values that cross the border as data: tool arguments and return values.

In them, at any depth, something may be mentioned that does not exist yet: `s.ref(x)`, a join, a tool call, a handle that was
appended, a text with one of these in it. For the graph a value with mentions is an expression; for the run it is a Template,
filled in once the values are there, so that a tool gets the objects themselves.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, TypeAlias

from ..errors import GraphError, Origin, ProgramError
from ..ir.execution import Outcome
from ..ir.expressions import MAX_DATA_DEPTH
from ..ir.nodes import Concat, Constant, DictOf, Expression, ListOf, Operation, Piece, Plain, Reference
from ..ir.operations import apply_all, jsonable, text_of
from .bindings import Find, LocalBinding, NodeBinding
from .conversion import Conversion, fields_of, is_exact
from .expressions import Chain, Handle, Lazy, Mention

Outcomes: TypeAlias = Callable[[str], Outcome]

MENTIONS = (Lazy, Mention, Handle, Chain)
_CONTAINERS = (list, tuple, set, frozenset, dict)


class TemplateText:
    """A text with values in it that do not exist yet: what stands in a Template for a Chain."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[str | NodeBinding | Reference, ...]) -> None:
        self.parts = parts

    @property
    def expression(self) -> Expression:
        """How the graph says it."""
        return Concat(tuple(Constant(p) if isinstance(p, str) else p if isinstance(p, Reference) else p.expression
                            for p in self.parts))  # fmt: skip

    def read(self, outcomes: Outcomes) -> str:
        """The text."""
        return "".join(p if isinstance(p, str) else text_of(read_mention(p, outcomes)) for p in self.parts)


def resolved_mention(value: Any, find: Find, origin: Origin) -> NodeBinding | TemplateText | Reference:
    """What a mention stands for.

    Raises:
        ProgramError: an expression that is no value: a turn, a raw text. UnknownNameError: a handle that was not appended.
    """
    match value:
        case Lazy():
            return value.bound
        case Handle():
            return find(value)
        case Mention(bound=NodeBinding() as bound):
            return bound
        case Mention(pieces=(Reference() as only,)):
            return only
        case Mention(pieces=pieces):
            return TemplateText(tuple(p if isinstance(p, Reference) else p.text for p in pieces))
        case Chain(parts=parts) if all(isinstance(part, (str, *MENTIONS)) for part in parts):
            found = [part if isinstance(part, str) else resolved_mention(part, find, origin) for part in parts]
            return TemplateText(
                tuple(p for part in found for p in (part.parts if isinstance(part, TemplateText) else (part,)))
            )
    raise ProgramError(
        f"{value!r} is appended to a state, and is no data",
        hint="s[...] reads a value, s.ref(...) mentions it",
        origin=origin,
    )


# --- for the graph ----------------------------------------------------------------------------------------------------


def data_of_value(value: Any, find: Find, origin: Origin) -> Expression:
    """`value` as an expression of JSON, for the graph: what a program returns. Mentions are not waited for.

    Raises:
        ProgramError: something in it is not JSON-like data.
    """
    return Writer(find, origin, json_constant).write(value)


def argument_of_value(value: Any, find: Find, origin: Origin) -> Expression:
    """`value` as an expression of objects: an argument of a tool. Lists, dicts and the like are copied, all else is itself."""
    return Writer(find, origin, object_constant).write(value)


class Writer:
    """Writes a value as an expression. `constant` makes one of a value in which nothing is mentioned."""

    def __init__(self, find: Find, origin: Origin, constant: Callable[[Any, Origin], Constant]) -> None:
        self.find = find
        self.origin = origin
        self.constant = constant

    def write(self, value: Any) -> Expression:
        """The expression."""
        return (
            self.constant(value, self.origin)
            if self.plain(value)
            else self._or_constant(self._mentioning(value, ()), value)
        )

    def plain(self, value: Any) -> bool:
        """Whether nothing can be mentioned in it. Raises ProgramError where it is too deep to look for it."""
        if not holds_mention(value):
            return True
        check_depth(value, self.origin)
        return False

    def leaf(self, value: Any) -> Expression | None:
        """What stands for a value that is a mention in itself; None for all others."""
        if not isinstance(value, MENTIONS):
            return None
        found = resolved_mention(value, self.find, self.origin)
        return found if isinstance(found, Reference) else found.expression

    def key(self, key: str) -> str:
        """A key of a dict."""
        return key

    def _or_constant(self, found: Expression | None, value: Any) -> Expression:
        return self.constant(value, self.origin) if found is None else found

    def _mentioning(self, value: Any, above: tuple[int, ...]) -> Expression | None:
        """The expression of a value with mentions in it; None where there are none."""
        if (leaf := self.leaf(value)) is not None:
            return leaf
        inside = _inside(value)
        if inside is None or id(value) in above:
            return None
        above = (*above, id(value))
        found = [self._mentioning(item, above) for item in inside]
        if isinstance(value, (list, tuple, set, frozenset)):
            if all(item is None for item in found):
                return None
            return ListOf(tuple(map(self._or_constant, found, inside)))
        names = list(value) if isinstance(value, dict) else list(fields_of(value) or ())
        keys = [self.key(name) if isinstance(name, str) else name for name in names]
        if all(item is None for item in found):
            return None
        if not all(isinstance(key, str) for key in keys):
            raise ProgramError(
                "a dict with a value in it that does not exist yet has keys that are not text",
                hint="use strings as keys, or read the value first: s[...]",
                origin=self.origin,
            )
        return DictOf(tuple(zip(keys, map(self._or_constant, found, inside), strict=True)))


def object_constant(value: Any, origin: Origin) -> Constant:
    """An object in the graph of a run; on its way out of it, its own type says how it is written."""
    check_depth(value, origin)
    return Constant(copied(value), None if is_exact(value) else Conversion(type(value)).to_json)


def json_constant(value: Any, origin: Origin) -> Constant:
    """The JSON of a value. Raises ProgramError where it has none."""
    if isinstance(value, (bool, int, float, str, type(None))) and not isinstance(value, Enum):
        return Constant(value)
    if not isinstance(value, (*_CONTAINERS, Enum)) and fields_of(value) is None:
        raise _not_data(value, origin)
    try:
        data = jsonable(value)
    except (GraphError, ValueError, TypeError, RecursionError) as error:
        raise _not_data(value, origin) from error
    if any(not isinstance(key, str) for each in mentions_in(value, (dict,), set()) for key in each):
        raise ProgramError(
            "a dict whose keys are not text is not data that JSON holds", hint="use strings as keys", origin=origin
        )
    return Constant(data)


def json_pieces(expression: Expression) -> Iterator[Piece]:
    """The JSON text of an expression; of values that do not exist yet the graph will make it."""
    match expression:
        case Constant(value):
            yield Plain(json.dumps(value, ensure_ascii=False))
        case Reference(node_id, operations):
            yield Reference(node_id, (*operations, Operation("json")))
        case ListOf(items):
            yield Plain("[")
            for index, item in enumerate(items):
                yield from ((Plain(", "),) if index else ())
                yield from json_pieces(item)
            yield Plain("]")
        case DictOf(pairs):
            yield Plain("{")
            for index, (key, item) in enumerate(pairs):
                yield Plain(f"{', ' if index else ''}{json.dumps(key, ensure_ascii=False)}: ")
                yield from json_pieces(item)
            yield Plain("}")
        case Concat(parts):
            yield Plain('"')
            for part in parts:
                yield from _inside_quotes(part)
            yield Plain('"')


def _inside_quotes(part: Expression) -> Iterator[Piece]:
    """A part of a text, escaped for JSON, without the quotes."""
    if isinstance(part, Constant):
        yield Plain(json.dumps(text_of(part.value), ensure_ascii=False)[1:-1])
    elif isinstance(part, Reference):
        quoted = (Operation("format", ("",)), Operation("json"), Operation("slice", (1, -1, None)))
        yield Reference(part.node_id, (*part.operations, *quoted))


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Plain texts that follow each other as one."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Plain) and found and isinstance(found[-1], Plain):
            found[-1] = Plain(found[-1].text + piece.text)
        else:
            found.append(piece)
    return tuple(found)


def _not_data(value: Any, origin: Origin) -> ProgramError:
    return ProgramError(
        f"a {type(value).__name__} is not data that a graph can hold",
        hint="use JSON-like values, dataclasses, enums or pydantic models",
        origin=origin,
    )


# --- for the run ------------------------------------------------------------------------------------------------------


class Template:
    """Arguments of one call as Python objects. Those with mentions in them are filled in when the values are there.

    A run's own: it is not stored, and of a pickled graph it is left out.
    """

    __slots__ = ("_arguments",)

    def __init__(self, arguments: Mapping[str, Any], find: Find, origin: Origin) -> None:
        def placed(mention: Any) -> Any:
            return resolved_mention(mention, find, origin)

        self._arguments = {name: replaced(value, MENTIONS, placed, fresh=True) for name, value in arguments.items()}

    def fill(self, outcomes: Outcomes) -> dict[str, Any]:
        """The arguments, fresh each time as far as they are lists and the like."""

        def read(mention: Any) -> Any:
            return read_mention(mention, outcomes)

        return {
            name: replaced(value, (NodeBinding, TemplateText, Reference), read, fresh=True)
            for name, value in self._arguments.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> None:
    """What is left of a Template elsewhere."""


def read_mention(mention: NodeBinding | TemplateText | Reference, outcomes: Outcomes) -> Any:
    """The value of what is mentioned, once it is there."""
    if isinstance(mention, TemplateText):
        return mention.read(outcomes)
    if isinstance(mention, Reference):
        return apply_all(outcomes(mention.node_id).value, mention.operations)
    if isinstance(mention, LocalBinding):
        return mention.resolve(outcomes)
    return mention.finish(outcomes(mention.node_id))


def holds_mention(value: Any) -> bool:
    """Whether something that may not exist yet is mentioned in it, at any depth."""
    return any(True for _ in mentions_in(value, MENTIONS, set()))


def mentions_in(value: Any, kinds: tuple[type, ...], seen: set[int]) -> Iterator[Any]:
    """All objects of `kinds` in it, at any depth, in reading order."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, kinds):
            yield value
            if not isinstance(value, dict):
                continue
        inside = _inside(value)
        if inside is not None and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(reversed(list(inside)))


def check_depth(value: Any, origin: Origin | None = None) -> None:
    """Raise ProgramError for lists and dicts in each other so deeply that Python itself could not walk or print them."""
    level, depth = [value], 0
    seen: set[int] = set()
    while level:
        if depth > MAX_DATA_DEPTH:
            raise ProgramError(
                f"a {type(value).__name__} has lists or dicts in each other more than {MAX_DATA_DEPTH} deep",
                hint="hand it on in a flatter form, or as an object of a class of your own",
                origin=origin,
            )
        containers = [item for item in level if _inside(item) is not None and id(item) not in seen]
        seen.update(map(id, containers))
        level, depth = [inner for item in containers for inner in _inside(item)], depth + 1


def _inside(value: Any) -> Any:
    """What a container or an object of data holds; None for all else."""
    if isinstance(value, (str, int, float, bytes, type(None))):
        return None
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, _CONTAINERS):
        return value
    fields = None if isinstance(value, type) else fields_of(value)
    return None if fields is None else fields.values()


def copied(value: Any) -> Any:
    """A copy of lists, dicts and the like, down to the objects in them, which stay themselves."""
    return replaced(value, (), lambda _: None, fresh=True)


def replaced(
    value: Any,
    kinds: tuple[type, ...],
    replace: Callable[[Any], Any],
    *,
    fresh: bool = False,
    above: tuple[int, ...] = (),
) -> Any:
    """`value` with each object of `kinds` in it replaced. What holds none is the very same object; `fresh`: lists, dicts and
    the like are copied even so. An object that holds one is a copy, made without its `__init__`.
    """
    if isinstance(value, kinds):
        return replace(value)
    if _inside(value) is None or id(value) in above:
        return value
    if not above and not fresh:
        if not any(True for _ in mentions_in(value, kinds, set())):
            return value
        check_depth(value)
    above = (*above, id(value))

    def inner(item: Any) -> Any:
        return replaced(item, kinds, replace, fresh=fresh, above=above)

    kind = type(value)
    if isinstance(value, dict):
        items = {key: inner(item) for key, item in value.items()}
        if kind is dict:
            return items if fresh or _changed(items.values(), value.values()) else value
        return _with_items(value, items) if _changed(items.values(), value.values()) else value
    if isinstance(value, _CONTAINERS):
        parts = [inner(item) for item in value]
        if not _changed(parts, value) and not (fresh and kind in _CONTAINERS):
            return value
        if hasattr(kind, "_make"):  # a named tuple
            return kind._make(parts)
        return kind(parts)
    fields = fields_of(value) or {}
    changes = {
        name: new for name, item in fields.items() if (new := replaced(item, kinds, replace, above=above)) is not item
    }
    return _with_fields(value, changes) if changes else value


def _changed(new: Any, old: Any) -> bool:
    return any(a is not b for a, b in zip(new, old, strict=True))


def _with_items(value: Any, items: Mapping[Any, Any]) -> Any:
    """A copy of a dict of a class of its own (ordered, with a default) with other values."""
    made = copy.copy(value)
    made.update(items)
    return made


def _with_fields(value: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of an object with other values in some fields, whatever its class checks, computes or freezes."""
    made = copy.copy(value)
    for name, item in changes.items():
        private = getattr(made, "__pydantic_private__", None)
        if private is not None and name in private:
            private[name] = item
            continue
        with suppress(AttributeError):
            if name in vars(made):
                vars(made)[name] = item
                continue
        object.__setattr__(made, name, item)
    return made
