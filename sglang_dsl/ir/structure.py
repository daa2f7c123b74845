"""What a graph takes for granted of an argument: the lists and keys that its trace walked through."""

from __future__ import annotations

from typing import Any

from .nodes import Json
from .specs import shown

_TYPES: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}


def misfit(structure: Json, value: Any, name: str) -> str:
    """Where `value` differs from `structure` (see `Input`), or "" where it fits. `name`: of the argument."""
    match structure:
        case list():
            if not isinstance(value, (list, tuple)) or len(value) != len(structure):
                return f"{name} has to be a list of {len(structure)} items, and is {_shown(value)}"
            inner = ((s, v, f"{name}[{i}]") for i, (s, v) in enumerate(zip(structure, value, strict=True)))
        case dict():
            if not isinstance(value, dict) or list(value) != list(structure):
                return f"{name} has to be a dict with the keys {', '.join(structure)}, and is {_shown(value)}"
            inner = ((s, value[k], f"{name}[{k!r}]") for k, s in structure.items())
        case str() if not _is_a(value, structure):
            return f"{name} has to be a {structure}, and is {_shown(value)}"
        case _:
            return ""
    return next(filter(None, (misfit(*each) for each in inner)), "")


def _is_a(value: Any, type_name: str) -> bool:
    kind = _TYPES.get(type_name)
    return kind is None or (isinstance(value, kind) and isinstance(value, bool) == (type_name == "bool"))


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {shown(value)}"
    return text if len(text) <= 60 else text[:57] + "..."
