"""Values a model might give, for trying a graph against its body: nasty texts, and JSON under a schema."""

from __future__ import annotations

import inspect
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from ...ir.nodes import Gen, Json
from ..outputs import FLOAT_REGEX, INT_REGEX
from .origins import is_library

NASTY = (
    "", " ", "plain", " padded ", "two  words", "Two\nlines\n", "\ttab\r\n", 'quo"te', "it's", "back\\slash", "\\n", "{}", "{0}",
    "{x}", "%s", "100%", "%(x)s", "$x", "${x}", "<b>&amp;</b>", "a/b//c", "./..", "a,b;c", "0", "-7", "3.0", "1e3", "true", "False",
    "None", "null", "UPPER", "lower", "Title Case", "ß", "İ", "ﬁ", "é", "e\u0301", "日本語", "🙂", "x" * 70, "[1, 2]", '{"a": 1}', "a=b",
    "- item", "# head", "yes", "no", "END", ".", "?", "abc123", "a" * 3, "\u00a0", "\u2028",
)  # fmt: skip
_INTS = ("0", "7", "-7", "42", "100000", "1")
_FLOATS = ("0", "5", "-3", "0.5", "12.25", "1.10", "100000")
_DEPTH = 6  # levels of a recursive schema
_REACH = 3  # calls from the body to a function whose constants still count


class Samples:
    """Answers of a pretended model for one trial. Equal prompts get equal answers."""

    def __init__(self, trial: int, texts: Sequence[str]) -> None:
        self._trial = trial
        self._texts = tuple(texts)

    def choice(self, options: Sequence[Any], *where: object) -> Any:
        """One of the options; over the trials, each comes up at each place."""
        return options[(self._trial + zlib.crc32(repr(where).encode())) % len(options)]

    def text(self, *where: object) -> str:
        """Any text."""
        found: str = self.choice(self._texts, *where)
        return found

    def generated(self, gen: Gen, prompt: str) -> str:
        """The text of a gen."""
        where = (gen.name, prompt, gen.sample)
        constraint = gen.constraint
        if constraint is None:
            return self.text(*where) if gen.decode == "text" else json.dumps(self.data({}, *where))
        match constraint.kind:
            case "choices":
                return str(self.choice(json.loads(constraint.text), *where))
            case "json_schema":
                schema = json.loads(constraint.text)
                return json.dumps(self.data(schema, *where, root=schema), ensure_ascii=False)
            case "regex" if constraint.text in (INT_REGEX, FLOAT_REGEX):
                return str(self.choice(_INTS if constraint.text == INT_REGEX else _FLOATS, *where))
        return self.text(*where)

    def data(self, schema: Any, *where: object, root: Any = None, depth: int = 0) -> Json:
        """JSON that the schema admits, as far as `type=` makes schemas."""
        if not isinstance(schema, Mapping) or not schema:
            found: Json = self.choice(("text", 1, True, None, [1, "a"], {"a": "b"}), *where)
            return found
        if "$ref" in schema:
            return self.data(_resolved(schema["$ref"], root), *where, root=root, depth=depth)
        for key in ("const", "enum"):
            if key in schema:
                return schema[key] if key == "const" else self.choice(schema[key], *where)  # type: ignore[no-any-return]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                options = schema[key] if depth < _DEPTH else schema[key][-1:]
                return self.data(self.choice(options, *where), *where, root=root, depth=depth + 1)
        return self._of_kind(schema, where, root, depth)

    def _of_kind(self, schema: Mapping[str, Any], where: tuple[object, ...], root: Any, depth: int) -> Json:
        match schema.get("type"):
            case "object":
                known = schema.get("properties", {})
                needed = set(schema.get("required", ()))
                keys = [k for k in known if k in needed or self.choice((True, False), *where, k)]
                return {k: self.data(known[k], *where, k, root=root, depth=depth + 1) for k in keys}
            case "array":
                low = schema.get("minItems", 0)
                size = self.choice((low, low + 1, low + 2), *where) if depth < _DEPTH else low
                size = min(size, schema.get("maxItems", size))
                return [self.data(schema.get("items", {}), *where, i, root=root, depth=depth + 1) for i in range(size)]
            case "string":
                return self.text(*where)[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "x")
            case "integer" | "number":
                return _bounded(self.choice((0, 1, -2, 7, 42), *where), schema)
            case "boolean":
                return bool(self.choice((True, False), *where))
        return None


def texts_for(body: FunctionType) -> tuple[str, ...]:
    """Nasty texts, and the string constants (and their words) of the body and of the user's functions it reaches: what a body
    compares with is what it may get.
    """
    own = [text for code in _reached(body, set(), 0) for text in _constants(code) if len(text) <= 200]
    words = [word for text in own for word in text.split() if word != text]
    return tuple(dict.fromkeys((*NASTY, *own, *words)))


def _reached(function: object, seen: set[CodeType], depth: int) -> Iterator[CodeType]:
    """The code of a function and of those it names or closes over, libraries aside."""
    found = inspect.unwrap(getattr(function, "function", function))  # type: ignore[arg-type]  # programs and tools hold theirs
    if not isinstance(found, FunctionType) or found.__code__ in seen or depth > _REACH or is_library(found.__code__):
        return
    seen.add(found.__code__)
    yield found.__code__
    named = [found.__globals__[name] for name in found.__code__.co_names if name in found.__globals__]
    cells = [cell.cell_contents for cell in found.__closure__ or () if not _is_empty(cell)]
    for each in (*named, *cells):
        yield from _reached(each, seen, depth + 1)


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  asking is the only way to find out
    except ValueError:
        return True
    return False


def _constants(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from (item for item in constant if isinstance(item, str))
        elif isinstance(constant, CodeType):
            yield from _constants(constant)


def _bounded(number: int, schema: Mapping[str, Any]) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", number - 1) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", number + 1) - 1)
    return max(low, min(number, high))  # type: ignore[no-any-return]


def _resolved(reference: str, root: Any) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        root = root[part.replace("~1", "/").replace("~0", "~")] if isinstance(root, Mapping) else {}
    return root
