"""The recorded operations on a value that does not exist yet, and the only code that evaluates them.

The table is closed: a stored graph can name nothing else, so running somebody's graph never calls arbitrary Python.
Text in, text out; `item`, `slice` and `attr` read into JSON data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import GraphError
from .expressions import Json, Operation, is_too_deep
from .outcome import MISSING
from .specs import shown

TEXT_METHODS: Mapping[str, Callable[..., str]] = {
    method.__name__: method
    for method in (
        str.capitalize,
        str.casefold,
        str.center,
        str.expandtabs,
        str.ljust,
        str.lower,
        str.lstrip,
        str.removeprefix,
        str.removesuffix,
        str.replace,
        str.rjust,
        str.rstrip,
        str.strip,
        str.swapcase,
        str.title,
        str.upper,
        str.zfill,
    )
}
MAX_WIDTH = 1_000_000  # characters `center(n)`, `zfill(n)`, `{:>n}` and the like may grow a text to


def apply(value: Any, operation: Operation) -> Any:
    """`operation` on `value`.

    Raises:
        GraphError: the operation is not in the table, or this value has no such item or does not take it.
    """
    function = _OPERATIONS.get(operation.name)
    if function is None:
        raise GraphError(
            f"operation {operation.name!r} is not one a graph can hold", hint=f"one of {', '.join(OPERATION_NAMES)}"
        )
    try:
        return function(value, *operation.args)
    except GraphError:
        raise
    except RecursionError:
        raise too_deep() from None
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise GraphError(f"{describe(operation)} does not work on {_short(value)}: {error}") from error


def apply_all(value: Any, operations: Sequence[Operation]) -> Any:
    """`operations` on `value`, in order. Raises like `apply`."""
    for operation in operations:
        value = apply(value, operation)
    return value


def text_of(value: Any) -> str:
    """How a value reads inside a prompt: text as it is, all else as JSON."""
    if type(value) is str:
        return value
    try:
        return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else str.__str__(value)
    except (TypeError, ValueError):  # objects in it; or it holds itself
        data = jsonable(value)
        return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    except RecursionError:
        raise too_deep() from None


def describe(operation: Operation) -> str:
    """The operation as one would write it in Python: `.strip()`, `[2]`, `[1:3]`, `.name`."""
    args = operation.args
    match operation.name:
        case "item" if len(args) == 1:
            return f"[{args[0]!r}]"
        case "slice" if len(args) == 3:
            start, stop, step = ("" if a is None else repr(a) for a in args)
            return f"[{start}:{stop}{':' + step if step else ''}]"
        case "attr" if len(args) == 1:
            return f".{args[0]}"
        case "repr":
            return "!r"
        case "float" | "json":
            return f".{operation.name}()"
        case "format" if len(args) == 1:
            return f":{args[0]}"
    return f".{operation.name}({', '.join(map(repr, args))})"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _on_text(method: Callable[..., str]) -> Callable[..., str]:
    def call(value: Any, *args: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"it is a {type(value).__name__}, not text")
        if any(isinstance(a, int) and a > MAX_WIDTH for a in args[:1]):
            raise ValueError(f"width {args[0]} is more than {MAX_WIDTH}")
        return method(value, *args)

    return call


def _item(value: Any, key: Json) -> Any:
    if isinstance(value, dict) and isinstance(key, str):
        return value[key]
    if isinstance(value, (list, tuple, str)) and isinstance(key, int) and not isinstance(key, bool):
        return value[key]
    raise TypeError(f"a {type(value).__name__} has no item {key!r}")


def _slice(value: Any, start: int | None, stop: int | None, step: int | None) -> Any:
    if not isinstance(value, (list, tuple, str)):
        raise TypeError(f"a {type(value).__name__} cannot be sliced")
    return value[start:stop:step]


def splice(value: list[Any], *at: int) -> list[Any]:
    """The list with the lists at `at` replaced by their items."""
    if not isinstance(value, list) or any(type(i) is not int or not 0 <= i < len(value) for i in at):
        raise TypeError("it has no such items")
    inside = set(at)
    return [
        item
        for i, outer in enumerate(value)
        for item in (outer if i in inside and isinstance(outer, list) else (outer,))
    ]


def _attribute(value: Any, name: str) -> Any:
    """Objects are stored as JSON objects, so an attribute is a key. Python attributes are never read."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} has no fields")
    return value[name]


def _format(value: Any, spec: str) -> str:
    digits = "".join(c if c.isdigit() else " " for c in spec).split()
    if any(len(d) > 6 for d in digits):
        raise ValueError(f"width in {spec!r} is more than {MAX_WIDTH}")
    return format(value, spec)


def json_of(value: Any) -> str:
    """A value as JSON text: text gets quotes."""
    return json.dumps(jsonable(value), ensure_ascii=False)


def jsonable(value: Any) -> Json:
    """A value as JSON data: dataclasses, models, enums, dates and the like as pydantic writes them. For reading, by people
    and models: what an object leaves out of its JSON is not in it.

    Raises:
        GraphError: some object in it has no JSON.
    """
    from pydantic_core import to_jsonable_python

    try:
        data: Json = to_jsonable_python(value, fallback=_without_json)
    except GraphError:
        raise
    except (
        Exception
    ) as error:  # also what an object's own code raises; and what is nested too deeply is taken for a circle
        if is_too_deep(value):
            raise too_deep() from None
        raise GraphError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error
    return data


def too_deep() -> GraphError:
    """What to raise where Python's own stack ends inside a value."""
    return GraphError(
        "a value has lists or dicts in each other so deeply that it cannot be written as text",
        hint="mention a flatter form of it, or a part",
    )


def _without_json(value: Any) -> str:
    if isinstance(value, BaseException) or value is MISSING:  # in the list of a join that settles
        return str(value)
    raise GraphError(
        f"a {type(value).__name__} is not data and has no JSON, so it cannot stand in text or in a graph",
        hint="mention what you want of it: a text, a number, a dataclass, a pydantic model",
    )


def _float(value: Any) -> float:
    """What `type=float` makes of a JSON number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("it is no number")
    return float(value)


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _on_text(method) for name, method in TEXT_METHODS.items()},
    "float": _float,
    "json": json_of,
    "format": _format,
    "repr": repr,
    "item": _item,
    "slice": _slice,
    "attr": _attribute,
    "splice": splice,
}
OPERATION_NAMES: tuple[str, ...] = tuple(sorted(_OPERATIONS))
