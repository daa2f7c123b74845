"""A value that does not exist yet: what is known of it (its shape), and how it reads as text (its tag).

TextShape      any text
FiniteShape    one of a few values (a select, a Literal, an Enum, a bool); `choices` pairs the JSON with what is read
NumberShape    an int or a float
DataShape      JSON-like: a list, an object; `members` where its fields are known, `item` where it is a list of one kind
OptionalShape  null, or a value of `shape`
OpaqueShape    only its type is known: it can be mentioned where it is whole, and nothing else

A tag stands for such a value inside texts:

    U+FDD0 chunk U+FDD1 chunk U+FDD1 ... nonce ... U+FDD2 number U+FDD3

The delimiters are noncharacters, which are in no text that a user writes. The chunks between them are a canary: letters
of both cases, quotes, backslashes, blanks, line ends, markup, slashes, composed letters. Whatever escapes, folds, wraps, splits,
normalises or cuts a text damages it, so a tag that is found intact was only moved.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ...ir.nodes import Json


@dataclass(frozen=True, slots=True)
class TextShape:
    """Any text."""


@dataclass(frozen=True, slots=True)
class NumberShape:
    """An int or a float. `convert`: the JSON number is made a float when it is read."""

    python: type = int
    convert: bool = False


@dataclass(frozen=True, slots=True)
class FiniteShape:
    """One of a few values: (as JSON, as it is read)."""

    choices: tuple[tuple[Json, Any], ...]

    @property
    def textual(self) -> bool:
        """Whether every value is plain text, which stays abstract; others are decided when they are read, because no
        object but the value itself passes `x is True` or `x is Kind.A`.
        """
        return all(type(raw) is str and type(value) is str for raw, value in self.choices)


@dataclass(frozen=True, slots=True)
class DataShape:
    """A list or an object.

    members: shapes by key, of an object; `attributes`: they are read as attributes. item: of a list. plain: what is read
    is the JSON itself, so that formatting it can be recorded. whole: mentioning all of it gives what the program would have
    given (no field that may be left out and has a default). optional: the shapes of fields that may be left out.
    """

    python: type | None = None
    members: tuple[tuple[str, Shape], ...] | None = None
    item: Shape | None = None
    attributes: bool = False
    plain: bool = False
    whole: bool = True
    optional: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True)
class OptionalShape:
    """Null, or a value of `shape`."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class OpaqueShape:
    """Something that only Python knows how to make of its JSON. `certain`: it is at least no None, True or False, which
    Python code tells by identity.
    """

    name: str = "a value"
    certain: bool = True


Shape: TypeAlias = TextShape | NumberShape | FiniteShape | DataShape | OptionalShape | OpaqueShape

TEXT = TextShape()
JSON = DataShape(plain=True)  # any JSON: nothing but mentioning, formatting and reading into it is known to work
_NULL = FiniteShape(((None, None),))
BOOL = FiniteShape(((True, True), (False, False)))


def whole(shape: Shape) -> bool:
    """Whether the JSON of a value of this shape is what the program would hand on."""
    match shape:
        case DataShape(members=members, item=item, whole=complete):
            inner = [s for _, s in members or ()] + ([item] if item is not None else [])
            return complete and all(map(whole, inner))
        case OptionalShape(shape=inside):
            return whole(inside)
        case NumberShape(convert=convert):
            return not convert
        case OpaqueShape():
            return False
    return True


def said_by_schema(shape: Shape) -> bool:
    """Whether a JSON schema says all that Python's type demands, so that nothing is left for Python to check."""
    match shape:
        case DataShape(members=members, item=item, optional=optional):
            inner = [*(s for _, s in members or ()), *optional, *([item] if item is not None else [])]
            return all(map(said_by_schema, inner))
        case OptionalShape(shape=inside):
            return said_by_schema(inside)
    return not isinstance(shape, OpaqueShape)


# --- from JSON schemas: what is read is the JSON itself ----------------------------------------------------------------


def of_schema(schema: Any) -> Shape:
    """The shape of data under a JSON schema, read as it is."""
    if not isinstance(schema, Mapping):
        return JSON
    if "enum" in schema:
        return FiniteShape(tuple((value, value) for value in schema["enum"]))
    if "const" in schema:
        return FiniteShape(((schema["const"], schema["const"]),))
    match schema.get("type"):
        case "string":
            return TEXT
        case "integer":
            return NumberShape()
        case "number":
            return NumberShape(float)
        case "boolean":
            return BOOL
        case "null":
            return _NULL
        case "array":
            return DataShape(list, item=of_schema(schema.get("items")), plain=True)
        case "object":
            required = schema.get("required", ())
            known = schema.get("properties", {})
            return DataShape(dict, tuple((k, of_schema(v)) for k, v in known.items() if k in required), plain=True)
    return OpaqueShape("a value of a schema with alternatives", certain=False)


# --- from Python types: what is read was made of the JSON ---------------------------------------------------------------


def of_type(wanted: Any, above: tuple[type, ...] = ()) -> Shape:
    """The shape of a value that `type=` makes of JSON. Types whose making is not plain (validators, aliases, dates) are
    An OpaqueShape, and so is a class inside itself. above: the classes that this one stands in.
    """
    simple: dict[Any, Shape] = {
        str: TEXT, int: NumberShape(), float: NumberShape(float, convert=True), bool: BOOL, type(None): _NULL, None: _NULL,
    }  # fmt: skip
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return FiniteShape(tuple((member.value, member) for member in wanted))
    if (wanted is None or isinstance(wanted, type)) and wanted in simple:
        return simple[wanted]
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return FiniteShape(tuple((value.value if isinstance(value, Enum) else value, value) for value in arguments))
    if origin is Annotated:
        return of_type(arguments[0], above) if all(map(_only_checks, arguments[1:])) else OpaqueShape(str(wanted))
    if origin in (Union, types.UnionType):
        return _of_union(arguments, above)
    if origin is list or wanted is list:
        return DataShape(list, item=of_type(arguments[0], above) if arguments else JSON, plain=not arguments)
    if origin is dict or wanted is dict:
        return _of_dict(arguments, above) if arguments else DataShape(dict, plain=True)
    return _of_class(wanted, above) if isinstance(wanted, type) else OpaqueShape(str(wanted))


def _of_dict(arguments: tuple[Any, ...], above: tuple[type, ...]) -> Shape:
    if arguments[0] is not str:
        return OpaqueShape("a dict whose keys are made of text")
    inside = of_type(arguments[1], above)
    return DataShape(dict, whole=whole(inside), optional=(inside,))


def _of_union(arguments: tuple[Any, ...], above: tuple[type, ...]) -> Shape:
    kinds = [a for a in arguments if a is not type(None)]
    if len(kinds) == 1 and len(arguments) == 2:
        return OptionalShape(of_type(kinds[0], above))
    return OpaqueShape("one of several types", certain=False)


def _of_class(wanted: type, above: tuple[type, ...]) -> Shape:
    if wanted in above:
        return OpaqueShape(wanted.__name__)
    above = (*above, wanted)
    if is_typeddict(wanted):
        required: frozenset[str] = getattr(wanted, "__required_keys__", frozenset())
        hints = get_type_hints(wanted, include_extras=True)
        members = tuple((k, of_type(_bare(h), above)) for k, h in hints.items() if k in required)
        return DataShape(
            dict, members, optional=tuple(of_type(_bare(h), above) for k, h in hints.items() if k not in required)
        )
    if dataclasses.is_dataclass(wanted):
        return _of_dataclass(wanted, above)
    if hasattr(wanted, "model_fields") and hasattr(wanted, "__pydantic_decorators__"):
        return _of_model(wanted, above)
    return OpaqueShape(wanted.__name__)


def _bare(hint: Any) -> Any:
    from typing import NotRequired, Required

    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _of_dataclass(wanted: type, above: tuple[type, ...]) -> Shape:
    fields = dataclasses.fields(wanted)
    if hasattr(wanted, "__post_init__") or any(not f.init for f in fields):
        return OpaqueShape(wanted.__name__)
    hints = get_type_hints(wanted, include_extras=True)
    given = [f for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    members = tuple((f.name, of_type(hints[f.name], above)) for f in given)
    others = tuple(of_type(hints[f.name], above) for f in fields if f not in given)
    return DataShape(wanted, members, attributes=True, whole=not others, optional=others)


def _of_model(wanted: Any, above: tuple[type, ...]) -> Shape:
    decorators = wanted.__pydantic_decorators__
    changed = any(getattr(decorators, name) for name in ("validators", "field_validators", "root_validators",
                  "model_validators", "field_serializers", "model_serializers", "computed_fields"))  # fmt: skip
    unusual = set(wanted.model_config) - {"extra", "frozen", "title", "json_schema_extra", "protected_namespaces"}
    fields = wanted.model_fields
    plain = all(f.alias is None and all(map(_only_checks, f.metadata)) for f in fields.values())
    if changed or unusual or not plain or _post_init(wanted) or wanted.model_config.get("extra") == "allow":
        return OpaqueShape(wanted.__name__)
    required: list[tuple[str, Shape]] = [
        (name, of_type(f.annotation, above)) for name, f in fields.items() if f.is_required()
    ]
    others = tuple(of_type(f.annotation, above) for f in fields.values() if not f.is_required())
    return DataShape(wanted, tuple(required), attributes=True, whole=not others, optional=others)


def _post_init(model: Any) -> bool:
    from pydantic import BaseModel

    return model.model_post_init is not BaseModel.model_post_init or model.__init__ is not BaseModel.__init__


def _only_checks(constraint: Any) -> bool:
    """Whether an annotation refuses values but changes none."""
    module = type(constraint).__module__
    if module.startswith("annotated_types"):
        return True
    return type(constraint).__name__ in (
        "FieldInfo",
        "_PydanticGeneralMetadata",
        "PydanticGeneralMetadata",
    ) and not any(getattr(constraint, name, None) for name in ("strip_whitespace", "to_lower", "to_upper", "alias"))


BEGIN, BETWEEN, NUMBER, END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_ZERO = 0xFDE0  # digits of the number are U+FDE0 .. U+FDEF
_CHUNKS = (
    "aZ",
    " q",
    "  ",
    "\"'",
    "\\n",
    "<&>",
    "//",
    "/./",
    "\n",
    "\t",
    "{}",
    "%s",
    "$x",
    "0",
    "e\u0301",
    "\ufb01",
    "ß",
    "J1",
)
_LETTERS = "bcdfghjkmnpqrtvwxyz"
_DELIMITERS = re.compile("[\ufdd0-\ufdef]")
_PIECES = re.compile("[\ufdd0-\ufdef](?:.*[\ufdd0-\ufdef])?", re.DOTALL)
_ESCAPED = re.compile(r"\\u[fF][dD][dDeE][0-9a-fA-F](?:.*\\u[fF][dD][dDeE][0-9a-fA-F])?", re.DOTALL)
_ANY = re.compile(f"{BEGIN}.*?{NUMBER}[\ufde0-\ufdef]+{END}", re.DOTALL)


class TaggedText(NamedTuple):
    """A text taken apart: `parts` are plain texts and numbers of tags in order; `damage` says what is wrong, or is ""."""

    parts: tuple[str | int, ...]
    damage: str = ""


class Tags:
    """The tags of one trace. `length`: letters of the nonce; two traces of different lengths tell what depends on it."""

    __slots__ = ("_body", "_first", "_intact", "_nonce")

    def __init__(self, length: int = 8) -> None:
        letters = [_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(length)]  # no use of the body's `random`
        self._nonce = "".join(c.upper() if i % 2 else c for i, c in enumerate(letters))
        self._body = BEGIN + BETWEEN.join((*_CHUNKS[:9], self._nonce, *_CHUNKS[9:])) + NUMBER
        self._intact = re.compile(re.escape(self._body) + f"([\ufde0-\ufdef]+){END}")
        self._first = int.from_bytes(os.urandom(2))  # so that two traces differ in every tag

    def tag(self, number: int) -> str:
        """The text that stands for value `number`."""
        digits = "".join(chr(_ZERO + int(d, 16)) for d in f"{number + self._first:06x}")
        return f"{self._body}{digits}{END}"

    def find(self, text: str) -> TaggedText:
        """The tags in `text`, and whether anything in between is a piece of one."""
        if text.isascii() and not self._is_damaged(text):
            return TaggedText((text,) if text else ())
        parts: list[str | int] = []
        for index, part in enumerate(self._intact.split(text)):
            if index % 2:
                parts.append(_number(part) - self._first)
            elif part:
                if self._is_damaged(part):
                    return TaggedText((), _what(part))
                parts.append(part)
        return TaggedText(tuple(parts))

    def _is_damaged(self, part: str) -> bool:
        if not part.isascii() and _DELIMITERS.search(part):
            return True
        folded = part.casefold()
        nonce = self._nonce.casefold()
        return nonce in folded or nonce[::-1] in folded


def without_tags(text: str, name: Callable[[str], str]) -> str:
    """The text with names for tags (`name` is given an intact one), and nothing for what is left of damaged ones."""
    shown = _ANY.sub(lambda tag: name(tag[0]), text)
    return _ESCAPED.sub("…", _PIECES.sub("…", shown))


def holds_tag(text: str) -> bool:
    """Whether `text` holds a tag of any trace."""
    return not text.isascii() and _ANY.search(text) is not None


def _number(digits: str) -> int:
    return int("".join(f"{ord(d) - _ZERO:x}" for d in digits), 16)


def _what(part: str) -> str:
    return (
        "a value of another trace" if _ANY.search(part) else "a value that was changed after it became part of a text"
    )
