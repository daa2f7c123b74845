"""A faster `__init__` for frozen dataclasses with slots.

The one that `dataclasses` makes sets each field by name through `object.__setattr__`; this one writes through the slots'
own descriptors, which takes 1.0 µs instead of 1.7 for a Gen. A program makes one or more nodes with each append.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(cls: type[T]) -> type[T]:
    """Decorate a `@dataclass(frozen=True, slots=True, kw_only=True)` without `__post_init__`; nothing else of it changes."""
    names: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for field in fields(cls):  # type: ignore[arg-type]  # any dataclass
        name = field.name
        names[f"set_{name}"] = getattr(cls, name).__set__
        value = name
        if field.default_factory is not MISSING:
            names[f"new_{name}"] = field.default_factory
            parameters.append(f"{name}=MISSING")
            value = f"new_{name}() if {name} is MISSING else {name}"
        elif field.default is not MISSING:
            names[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        body.append(f"    set_{name}(self, {value})")
    exec(f"def __init__(self, *, {', '.join(parameters)}):\n" + "\n".join(body), names)
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**cls.__init__.__annotations__}
    cls.__init__ = init  # type: ignore[method-assign]  # the same signature
    return cls
