"""JSON schemas as validators of values. Patterns are searched by automata, in time that grows linearly with the text.

Python's `re`, which `jsonschema` would ask, may take for ever on a short text, and holds up every thread of the process meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

from ...errors import ConstraintError
from .automaton import Automaton
from .grammar import Chars, Grammar
from .regex import PYTHON, search_expr

SEARCH_S = 1.0  # for a pattern that looks around or back; other threads run meanwhile


class SchemaError(Protocol):
    """What is wrong with a value."""

    json_path: str
    message: str


class SchemaValidator(Protocol):
    """A schema that values are checked against."""

    def iter_errors(self, instance: Any) -> Iterator[SchemaError]:
        """All that is wrong."""

    def is_valid(self, instance: Any) -> bool:
        """Whether nothing is."""


def validator_of(schema: Any, *, formats: bool = True) -> SchemaValidator:
    """A validator of draft 2020-12. `formats`: whether `format` restricts anything."""
    kind = _validator_class()
    validator: SchemaValidator = kind(schema, format_checker=kind.FORMAT_CHECKER if formats else None)
    return validator


def found_in(pattern: str, text: str) -> bool:
    """What `re.search(pattern, text) is not None` says.

    Raises:
        ConstraintError: the pattern is malformed, or it is one that no automaton can search and needs more than SEARCH_S.
    """
    searcher = _searcher(pattern)
    if not isinstance(searcher, Automaton):
        try:
            return searcher.search(text, timeout=SEARCH_S, concurrent=True) is not None
        except TimeoutError as error:
            raise ConstraintError(
                f"the pattern {pattern!r} needed more than {SEARCH_S} s on {len(text)} characters",
                hint="write it without nested repetition",
            ) from error
    state = searcher.start
    for character in text:
        following = searcher.step(state, character)
        if following is None:
            return False
        state = following
    return state.accepting


@lru_cache(maxsize=256)
def _searcher(pattern: str) -> Any:
    try:
        return Automaton(Grammar(search_expr(pattern, PYTHON, Chars), {}))
    except ConstraintError:
        import regex

        try:
            return regex.compile(re.compile(pattern).pattern)
        except (re.error, regex.error) as error:
            raise ConstraintError(f"the regex is malformed: {error}", hint="test it with `re.compile`") from error


@lru_cache(maxsize=1)
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional}
    make: Any = extend  # it has no types
    return make(Draft202012Validator, own)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not found_in(pattern, instance):
        yield _error(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if found_in(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [name for name in instance if name not in known and not any(found_in(p, name) for p in patterns)]
    if validator.is_type(rule, "object"):
        for name in extra:
            yield from validator.descend(instance[name], rule, path=name)
    elif not rule and extra:
        names = ", ".join(map(repr, sorted(extra)))
        if patterns:
            shown = ", ".join(map(repr, sorted(patterns)))
            yield _error(f"{names} do{'es' if len(extra) == 1 else ''} not match any of the regexes: {shown}")
        else:
            were = "was" if len(extra) == 1 else "were"
            yield _error(f"Additional properties are not allowed ({names} {were} unexpected)")


def _error(message: str) -> Any:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


@lru_cache(maxsize=256)
def validator_of_text(text: str) -> SchemaValidator:
    """The validator of a schema written as JSON, made once.

    Raises:
        ConstraintError: it is no schema.
    """
    from jsonschema.exceptions import SchemaError as NotASchema

    schema = json.loads(text)
    try:
        _validator_class().check_schema(schema)
    except NotASchema as error:
        raise ConstraintError(f"the schema is not valid at {error.json_path}: {error.message}") from error
    return validator_of(schema)
