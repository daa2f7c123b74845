"""Limits on what a constraint may cost, checked before anything is compiled.

What an audit says about a constraint: which keywords are narrowed, and which cannot be enforced.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from ...errors import ConstraintError, SpecError
from ...ir.specs import MOST_TOKENS, whole


@dataclass(slots=True)
class Limits:
    """Sizes above which a constraint is refused, in this process. `set_limits` changes them.

    source_bytes: of the canonical text. depth: levels of schemas in schemas, and of regex groups. json_depth: brackets in the
    source. repeat_product: nested bounded repeats multiplied. references: followed in one schema, repeats counted. chain: of
    one bounded repeat that becomes a rule per repetition.
    """

    source_bytes: int = 256 * 1024
    depth: int = 64
    json_depth: int = 256
    enum_values: int = 10_000
    properties: int = 512
    repeat_product: int = 100_000
    references: int = 20_000
    chain: int = 512


LIMITS = Limits()
_HIGHEST = {
    "depth": 64,
    "json_depth": 256,
}  # the compiler follows these by recursion; all others cost only time and memory
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def set_limits(**sizes: int) -> None:
    """Raise (or lower) limits for the whole process, best before the first constraint: one that was compiled before stays as it is.

        set_limits(properties=2000, enum_values=50_000)

    Larger constraints take longer to compile, and their masks longer to compute: for every row of a batch.

    Raises:
        SpecError: no such limit (nothing is changed), or a size that is no whole number from 1 on.
    """
    known = {field.name for field in fields(Limits)}
    for name in sizes:
        if name not in known:
            raise SpecError(f"there is no limit {name!r}", hint=f"limits: {', '.join(sorted(known))}")
    checked = {name: whole(name, size, 1, _HIGHEST.get(name, MOST_TOKENS)) for name, size in sizes.items()}
    for name, size in checked.items():
        setattr(LIMITS, name, size)


def check_size(source: str) -> None:
    """Raise ConstraintError if the source itself is too large."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > LIMITS.source_bytes:
        raise ConstraintError(
            f"the constraint has {size} bytes, more than {LIMITS.source_bytes}",
            hint="split it over several calls, or raise the limit: set_limits(source_bytes=...)",
        )


def load_json(source: str, what: str) -> Any:
    """Parse JSON that may come from anyone.

    Raises:
        ConstraintError: malformed (with line and column), nested too deep, a key twice in one object, or a lone surrogate.
    """
    _check_brackets(source, what)
    try:
        value = json.loads(source, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConstraintError(
            f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}", hint="give valid JSON"
        ) from error
    except ValueError as error:
        raise ConstraintError(f"{what} is not JSON: {error}", hint="give valid JSON") from error
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConstraintError(
            f"{what} holds a lone surrogate, which no UTF-8 text can hold", hint="remove it"
        ) from error
    return value


def _check_brackets(source: str, what: str) -> None:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", source)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > LIMITS.json_depth:
        raise ConstraintError(
            f"{what} is nested {deepest} levels deep, more than {LIMITS.json_depth}",
            hint="flatten it, or name parts in $defs",
        )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} stands twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@dataclass(frozen=True, slots=True)
class Finding:
    """One keyword that the grammar does not say exactly.

    path: JSON pointer of the schema that holds it. severity `narrows`: every output is still valid, some valid values are never
    written. `weakens`: outputs may break the keyword (refused unless weakening was asked for).
    """

    path: str
    keyword: str
    severity: Literal["narrows", "weakens"]
    detail: str

    def __str__(self) -> str:
        return f"{self.keyword!r} at {self.path or '#'} {self.detail}"
