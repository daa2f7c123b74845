"""Typed outputs: what `type=` and `schema=` mean for the constraint, the decoding and the value that is read.

int, float, bool            a bounded regex            JSON number or boolean
Literal, Enum               choices                    the member
str                         nothing                    the text
anything pydantic knows     its JSON schema            validated and converted
a JSON schema as a dict     that schema                plain JSON

What the runtime asks before it accepts a value: the type's own validation, and the user's `validate=`.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import sys
import types
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from inspect import isawaitable
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..errors import InvalidValueError, SpecError
from ..ir.nodes import Json
from ..ir.outcome import Accepted
from ..ir.specs import ConstraintSpec, Decode, shown
from .annotations import complete

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
    _check_is_type(wanted)
    try:
        return _of_type(wanted)
    except TypeError:  # an unhashable annotation
        return _uncached(wanted)


def _check_is_type(wanted: Any) -> None:
    """Raise SpecError for a value where a type belongs."""
    if isinstance(wanted, (str, bytes)):
        looks_like_json = str(wanted).lstrip()[:1] in ("{", "[")
        hint = "json.loads(...) of it: a schema is a dict" if looks_like_json else "the type itself, without quotes"
        raise SpecError(f"{_short(wanted)} is text, not a type or a schema", hint=hint)
    if isinstance(wanted, (bool, int, float, list, tuple, set, frozenset)):
        raise SpecError(
            f"{_short(wanted)} is a value, not a type", hint="a type (int, list[str], a model), or a schema as a dict"
        )
    if isinstance(wanted, Enum):
        raise SpecError(f"{wanted!r} is one member", hint=f"type={type(wanted).__name__}, or Literal[{wanted}]")
    if not isinstance(wanted, type) and (is_dataclass(wanted) or hasattr(type(wanted), "model_fields")):
        raise SpecError(f"a {type(wanted).__name__} object is not a type", hint=f"its class: {type(wanted).__name__}")


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
        return _literal(get_args(wanted))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _enum(wanted)
    return _schema(wanted)


_of_type = lru_cache(maxsize=512)(_uncached)  # a type adapter takes milliseconds to build


def _literal(values: tuple[Any, ...]) -> Output:
    what = f"Literal{list(values)}"
    if any(isinstance(value, float) and not isinstance(value, Enum) for value in values):
        raise SpecError(f"{what} holds a float, which Python's Literal does not take", hint="an Enum with float values")
    return one_of(values, what)


def one_of(values: Iterable[Any], what: str) -> Output:
    """The output that is one of a few values: text as it is, all else as JSON; members of Enums are read as themselves.

    Raises:
        SpecError: none, one that is not JSON, or two that are written alike. `what` names them.
    """
    members = tuple(values)
    plain = [member.value if isinstance(member, Enum) else member for member in members]
    for value in plain:
        if type(value) not in (str, int, float, bool, type(None)) or value != value or value in (math.inf, -math.inf):
            raise SpecError(
                f"{what} holds {_short(value)}, which is not JSON",
                hint="use str, int, float, bool, None, or Enums of them",
            )
    textual = all(isinstance(value, str) for value in plain)
    texts = tuple(plain) if textual else tuple(json.dumps(value) for value in plain)
    read: dict[tuple[type, Json], Any] = {}
    for value, member in zip(plain, members, strict=True):
        known = read.setdefault((type(value), value), member)
        if type(known) is not type(member) or known != member:
            raise SpecError(f"{what} holds {known!r} and {member!r}, which are written alike", hint="keep one of them")
    convert = EnumMember(read) if any(isinstance(member, Enum) for member in members) else None
    return Output(ConstraintSpec.choices(tuple(dict.fromkeys(texts))), "text" if textual else "json", convert)


@dataclass(frozen=True, slots=True)
class EnumMember:
    """Reads a value as the member of an Enum that it stands for."""

    members: Mapping[tuple[type, Json], Any]

    def __call__(self, value: Any) -> Any:
        """The member. Raises ValueError where it is none's value."""
        try:
            return self.members[type(value), value]
        except (KeyError, TypeError):
            raise ValueError(f"{value!r} is none of {list(self.members.values())}") from None


def _enum(kind: type[Enum]) -> Output:
    if not len(kind):
        raise SpecError(f"{kind.__name__} has no members", hint="give the Enum at least one member")
    inner = one_of(kind, kind.__name__)
    return Output(inner.constraint, inner.decode, kind)


def _schema(wanted: Any) -> Output:
    from pydantic import PydanticUserError
    from pydantic.errors import PydanticSchemaGenerationError
    from pydantic_core import SchemaError

    try:
        adapter = _adapter(wanted)
        schema = adapter.json_schema(schema_generator=_generator())
    except (PydanticUserError, PydanticSchemaGenerationError, SchemaError, NameError, TypeError) as error:
        raise SpecError(
            f"no JSON schema can be made of {named(wanted)}: {_reason(error)}",
            hint=(
                "define it where the class that mentions it can see it, at run time too"
                if isinstance(error, NameError) or "not fully defined" in str(error)
                else "use int, float, bool, str, Literal, Enum, a dataclass, TypedDict, pydantic model or a JSON schema dict"
            ),
        ) from error

    return Output(
        ConstraintSpec.json_schema(_closed(schema)), "json", Converted(wanted, adapter), checks=not _says_all(wanted)
    )


# What pydantic writes for a timedelta, and reads: years of 365 days, fractions of seconds, a sign.
_DURATION = (r"^-?P(?:(?:[0-9]{1,6}Y(?:[0-9]{1,8}D)?|[0-9]{1,8}D)(?:T(?:{time}))?|T(?:{time})|[0-9]{1,6}W)$").replace(
    "{time}",
    r"[0-9]{1,6}H(?:[0-9]{1,6}M)?(?:[0-9]{1,6}(?:\.[0-9]{1,6})?S)?|[0-9]{1,6}M(?:[0-9]{1,6}(?:\.[0-9]{1,6})?S)?"
    r"|[0-9]{1,6}(?:\.[0-9]{1,6})?S",
)


@cache
def _generator() -> Any:
    """Makes schemas that take what the Python type takes: a set takes an item twice, a timedelta is more than RFC 3339's duration."""
    from pydantic.json_schema import GenerateJsonSchema

    class OfTypes(GenerateJsonSchema):
        def set_schema(self, schema: Any) -> dict[str, Any]:
            return _without_unique(super().set_schema(schema))

        def frozenset_schema(self, schema: Any) -> dict[str, Any]:
            return _without_unique(super().frozenset_schema(schema))

        def timedelta_schema(self, schema: Any) -> dict[str, Any]:
            made = super().timedelta_schema(schema)
            if made.get("format") != "duration":
                return made
            return {"type": "string", "pattern": _DURATION}

    return OfTypes


def _without_unique(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "uniqueItems"}


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
                f"{named(self.wanted)} does not accept it: {where}: {first['msg']}",
                text=json.dumps(data, ensure_ascii=False),
            ) from error


def _adapter(wanted: Any) -> TypeAdapter[Any]:
    """Pydantic's adapter; names that annotations of local classes mention are looked up with whoever calls.

    Raises:
        PydanticUserError, NameError, ...: no schema can be made of it.
    """
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_portable(wanted))
        if adapter.pydantic_complete:
            return adapter
    except (NameError, PydanticUndefinedAnnotation):
        pass
    except PydanticUserError as error:
        if error.code not in ("class-not-fully-defined", "undefined-annotation"):
            raise
    complete(wanted)
    adapter = TypeAdapter(_portable(wanted))
    if not adapter.pydantic_complete:
        adapter.rebuild()
    return adapter


def adapter_of(wanted: Any) -> TypeAdapter[Any] | None:
    """Pydantic's adapter for a type, None where it has no notion of it."""
    try:
        return _adapter_if_any(wanted)
    except TypeError:  # an unhashable annotation
        return _adapter_if_any.__wrapped__(wanted)


@lru_cache(maxsize=512)
def _adapter_if_any(wanted: Any) -> TypeAdapter[Any] | None:
    from pydantic import PydanticUserError
    from pydantic.errors import PydanticSchemaGenerationError
    from pydantic_core import SchemaError

    try:
        return _adapter(wanted)
    except (PydanticUserError, PydanticSchemaGenerationError, SchemaError, NameError):
        return None


def _reason(error: Exception) -> str:
    """Why pydantic has no schema, in a line: the missing name where there is one."""
    name = getattr(error, "name", None)
    return f"{name!r} is defined nowhere that it could see" if name else str(error).splitlines()[0]


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
    origin, arguments = get_origin(wanted), get_args(wanted)
    if not arguments or origin is Literal:
        return wanted
    portable = tuple(map(_portable, arguments))
    if all(new is old for new, old in zip(portable, arguments, strict=True)):
        return wanted
    if origin is Annotated:
        return Annotated[(portable[0], *wanted.__metadata__)]
    if origin in (Union, types.UnionType):
        return Union[portable]  # noqa: UP007  of as many as there are
    return origin[portable] if origin in _CONTAINERS else wanted


_CONTAINERS = (list, dict, tuple, set, frozenset, Sequence, Mapping, Iterable, Collection)


def named(wanted: Any) -> str:
    """What messages call a type."""
    return wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else repr(wanted).replace("typing.", "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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


Check = tuple[str, Callable[[Any], Any]]


def check_takes_value(what: str, function: Any, hint: str) -> None:
    """Raise SpecError for what cannot be called with one value, or would not run then, before anything is paid for it."""
    if not callable(function):
        raise SpecError(f"{what}={shown(function)} cannot be called", hint=hint)
    if hasattr(type(function), "run_batch"):
        raise SpecError(
            f"{what}={shown(function)} is a program", hint=f"{what}=lambda value: {function.name}.run(value)"
        )
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or isinstance(inner, type)):
        inner = type(inner).__call__
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise SpecError(f"{what}={shown(function)} is a generator: nothing of it would run", hint=hint)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not every builtin says what it takes
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise SpecError(f"{what}={shown(function)} cannot be called with one value: {error}", hint=hint) from None


def check_of(output: Output, validate: Callable[[Any], Any] | None) -> Check | None:
    """(registry key, function of the decoded value), or None where every value that the constraint admits is right.

    The function returns what it made of the value, or False, or raises ValueError with the reason.
    """
    if validate is None:
        return (
            (f"type:{_named(getattr(output.convert, 'wanted', output.convert))}", _Converts(output.convert))
            if output.checks and output.convert
            else None
        )
    return f"validate:{_named(validate)}", _Accepts(output.convert, validate)


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """A conversion of `partial_ok` calls: what was cut off is read as its text. A number is never made of part of one."""

    convert: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        """The value, or the partial text."""
        if not isinstance(value, str):
            return self.convert(value)
        if self.convert is float:
            return value
        try:
            return self.convert(value)
        except (ValueError, InvalidValueError):  # an Enum without such a member, a model that wants an object
            return value


@dataclass(frozen=True, slots=True)
class _Converts:
    """Accepts what the type accepts."""

    convert: Callable[[Any], Any]

    def __call__(self, value: Any) -> Accepted:
        return Accepted(_typed(value, self.convert))


@dataclass(frozen=True, slots=True)
class _Accepts:
    """Accepts what the user's function does not refuse: it refuses by returning False, or by raising ValueError or
    AssertionError. It is called with the very object that the program will read; one that is `async def` is awaited.
    """

    convert: Callable[[Any], Any] | None
    validate: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        typed = value if self.convert is None else _typed(value, self.convert)
        with _assertions_refuse():
            accepted = self.validate(typed)
        return _later(accepted, typed) if isawaitable(accepted) else _verdict(accepted, typed)


async def _later(accepted: Awaitable[Any], typed: Any) -> Accepted | Literal[False]:
    with _assertions_refuse():
        return _verdict(await accepted, typed)


def _verdict(accepted: Any, typed: Any) -> Accepted | Literal[False]:
    return False if accepted is False else Accepted(typed)


@contextmanager
def _assertions_refuse() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise ValueError(str(error) or "an assertion of the validator failed") from error


def _typed(value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except InvalidValueError as error:
        raise ValueError(error.what) from error


def _named(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
