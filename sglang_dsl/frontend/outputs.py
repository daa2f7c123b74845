"""Typed outputs: what `type=` and `schema=` mean for the constraint, the decoding and the value that is read.

int, float, bool            a bounded regex            JSON number or boolean
Literal, Enum               choices                    the member
str                         nothing                    the text
anything pydantic knows     its JSON schema            validated and converted
a JSON schema as a dict     that schema                plain JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..errors import InvalidValueError, SpecError
from ..ir.specs import ConstraintSpec, Decode

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Digits are bounded so that a model cannot write digits until max_tokens; 18 digits fit a 64-bit integer.
INT_REGEX = r"-?(0|[1-9][0-9]{0,17})"
_DATA_KEYWORDS = frozenset({"default", "const", "enum", "examples"})  # hold data, not schemas
FLOAT_REGEX = r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?"


@dataclass(frozen=True, slots=True)
class Output:
    """How a call's text is constrained and becomes a value.

    convert: from the decoded JSON-like data to what the user reads; None where they are the same. checks: whether
    `convert` can refuse data that the constraint admits, so that the runtime has to ask it before it accepts a value.
    """

    constraint: ConstraintSpec | None = None
    decode: Decode = "text"
    convert: Callable[[Any], Any] | None = None
    checks: bool = False


TEXT = Output()


def output_of(wanted: Any) -> Output:
    """The Output for a type or a JSON schema dict.

    Raises:
        SpecError: not a type that a schema can be made of.
    """
    if isinstance(wanted, Mapping):
        return Output(ConstraintSpec.json_schema(dict(wanted)), "json")
    try:
        return _of_type(wanted)
    except TypeError:  # an unhashable annotation
        return _uncached(wanted)


def _uncached(wanted: Any) -> Output:
    simple = {
        str: TEXT,
        int: Output(ConstraintSpec(kind="regex", text=INT_REGEX), "json"),
        float: Output(ConstraintSpec(kind="regex", text=FLOAT_REGEX), "json", float),
        bool: Output(ConstraintSpec.choices(("true", "false")), "json"),
    }
    if isinstance(wanted, type) and wanted in simple:
        return simple[wanted]
    if get_origin(wanted) is Literal:
        return _one_of(get_args(wanted))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _enum(wanted)
    return _schema(wanted)


_of_type = lru_cache(maxsize=512)(_uncached)  # a type adapter takes milliseconds to build


def _one_of(values: tuple[Any, ...]) -> Output:
    if all(isinstance(v, str) for v in values):
        return Output(ConstraintSpec.choices(values))
    if any(not isinstance(v, (str, int, bool, type(None))) for v in values):
        raise SpecError(f"Literal{list(values)} holds values that are not JSON", hint="use str, int, bool or None")
    return Output(ConstraintSpec.choices(tuple(json.dumps(v) for v in values)), "json")


def _enum(kind: type[Enum]) -> Output:
    values = tuple(member.value for member in kind)
    if not values:
        raise SpecError(f"{kind.__name__} has no members", hint="give the Enum at least one member")
    inner = _one_of(values)
    return Output(inner.constraint, inner.decode, kind)


def _schema(wanted: Any) -> Output:
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_portable(wanted))
        schema = adapter.json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError, NameError) as error:
        raise SpecError(
            f"no JSON schema can be made of {_named(wanted)}: {str(error).splitlines()[0]}",
            hint="use int, float, bool, str, Literal, Enum, a dataclass, TypedDict, pydantic model or a JSON schema dict",
        ) from error

    return Output(
        ConstraintSpec.json_schema(_closed(schema)), "json", Converted(wanted, adapter), checks=not _says_all(wanted)
    )


@dataclass(frozen=True, slots=True)
class Converted:
    """Makes a value of type `wanted` of decoded JSON."""

    wanted: Any
    adapter: TypeAdapter[Any]

    def __call__(self, data: Any) -> Any:
        """The value. Raises InvalidValueError."""
        from pydantic import ValidationError

        try:
            return self.adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the value"
            raise InvalidValueError(
                f"{_named(self.wanted)} does not accept it: {where}: {first['msg']}",
                text=json.dumps(data, ensure_ascii=False),
            ) from error


def _says_all(wanted: Any) -> bool:
    """Whether the schema alone refuses all that the type refuses."""
    from .tracing.shapes import of_type, said_by_schema

    return said_by_schema(of_type(wanted))


def _portable(wanted: Any) -> Any:
    """The type with `typing.TypedDict` replaced: before Python 3.12 pydantic reads only that of typing_extensions."""
    if sys.version_info >= (3, 12):
        return wanted
    if is_typeddict(wanted):
        from typing_extensions import TypedDict

        fields: dict[str, Any] = {}
        for key, hint in get_type_hints(wanted, include_extras=True).items():
            plain = _portable(get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint)
            fields[key] = plain if key in wanted.__required_keys__ else NotRequired[plain]
        make: Any = TypedDict  # its functional form wants literal arguments
        return make(wanted.__name__, fields)
    arguments = get_args(wanted)
    if get_origin(wanted) in (list, dict, tuple, set, frozenset) and arguments:
        return get_origin(wanted)[tuple(map(_portable, arguments))]
    return wanted


def _named(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else repr(wanted)


def _closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` wherever an object lists its properties and says nothing."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: value if key in _DATA_KEYWORDS else _closed(value) for key, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
