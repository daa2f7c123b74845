"""Arguments of a trace: real ones are copied for each run of the body, symbolic ones become Inputs."""

from __future__ import annotations

import inspect
from collections import deque
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ...errors import TraceError
from ...ir.nodes import Input, Json, Reference
from ..annotations import hints_of
from ..sites import caller_origin
from ..traceable import Traceable
from ..values import after
from .shapes import BOOL, TEXT, Number, Shape, of_type

if TYPE_CHECKING:
    from .follower import Trace

_LEAVES: dict[type, Shape] = {
    str: TEXT, int: Number(), float: Number(float), bool: BOOL,
}  # fmt: skip
_CHANGEABLE = (list, dict, set, bytearray, deque)
_MISSING = object()


class Symbols:
    """The arguments of one trace. `inputs`: an Input per symbolic parameter.

    Raises:
        TraceError: a symbolic name that is no parameter, a leaf that cannot stay unknown, an argument that cannot be copied.
    """

    def __init__(
        self, program: Traceable, args: tuple[Any, ...], kwargs: dict[str, Any], symbolic: tuple[str, ...]
    ) -> None:
        self._given = _by_name(program, args, kwargs)
        self._hints = _hints(program)
        self._defaults = _changeable_defaults(program)
        for name in symbolic:
            if name not in program.parameters:
                raise TraceError(
                    f"symbolic={name!r}: {program.name} has no such parameter; it has: "
                    f"{', '.join(program.parameters) or 'none'}",
                    hint="name parameters of the program",
                    origin=caller_origin(),
                )
        self._symbolic = dict.fromkeys(symbolic)
        self.inputs = [self._input(name) for name in self._symbolic]

    def arguments(self, trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh ones, for one run of the body."""
        positional, named = self._given
        values: dict[str, Any] = {**dict(positional), **named}
        fresh = {name: self._fresh(name, value, trace) for name, value in values.items()}
        fresh.update((name, self._fresh(name, _MISSING, trace)) for name in self._symbolic if name not in fresh)
        fresh.update((name, _copied(value, name)) for name, value in self._defaults.items() if name not in fresh)
        order = [fresh.pop(name) for name, _ in positional]
        return tuple(order), fresh

    def _fresh(self, name: str, value: Any, trace: Trace) -> Any:
        if name not in self._symbolic:
            return _copied(value, name)
        if value is _MISSING:
            return trace.member(Reference(name), self._annotated(name))
        return _abstract(value, Reference(name), trace)

    def _input(self, name: str) -> Input:
        values = {**dict(self._given[0]), **self._given[1]}
        if name not in values:
            return Input(id=name, name=name, type_name=_type_name(self._hints.get(name, str)))
        value = values[name]
        if isinstance(value, (list, tuple, dict)):
            return Input(id=name, name=name, type_name=type(value).__name__, structure=_structure(value, name))
        return Input(id=name, name=name, type_name=_leaf(value, name))

    def _annotated(self, name: str) -> Shape:
        shape = of_type(self._hints.get(name, str))
        return Number(float) if isinstance(shape, Number) and shape.convert else shape


def _by_name(
    program: Traceable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """(positional by parameter, the rest by name). Arguments of `*args` have positions for names."""
    names = [*program.parameters[: len(args)], *(f"*{i}" for i in range(len(program.parameters), len(args)))]
    positional = list(zip(names, args, strict=False))
    bound = {name: value for name, value in program.bound.items() if name not in dict(positional)}
    return positional, {**bound, **kwargs}


def _changeable_defaults(program: Traceable) -> dict[str, Any]:
    """Defaults that a body could change for the runs after it, by parameter."""
    parameters = inspect.signature(program.function).parameters
    return {
        name: parameters[name].default
        for name in program.parameters
        if name in parameters
        and isinstance(parameters[name].default, _CHANGEABLE)
        and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    }


def _hints(program: Traceable) -> dict[str, Any]:
    return hints_of(program.function).types  # of each parameter whose annotation is known at run time


def _abstract(value: Any, reference: Reference, trace: Trace) -> Any:
    """The value with every leaf made abstract."""
    match value:
        case list() | tuple():
            return type(value)([_abstract(v, after(reference, "item", i), trace) for i, v in enumerate(value)])
        case dict():
            return {key: _abstract(v, after(reference, "item", key), trace) for key, v in value.items()}
    return trace.member(reference, _LEAVES[type(value)])


def _structure(value: Any, name: str) -> Json:
    match value:
        case list() | tuple():
            return [_structure(item, f"{name}[{i}]") for i, item in enumerate(value)]
        case dict():
            return {str(key): _structure(item, f"{name}[{key!r}]") for key, item in value.items()}
    return _leaf(value, name)


def _leaf(value: Any, name: str) -> str:
    if type(value) not in _LEAVES:
        raise TraceError(
            f"{name} is a {type(value).__name__}, which cannot stay unknown",
            hint="symbolic arguments are texts, numbers and booleans, and lists and dicts of them",
            origin=caller_origin(),
        )
    return type(value).__name__


def _type_name(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) else str(hint)


def _copied(value: Any, name: str) -> Any:
    try:
        return deepcopy(value)
    except Exception as error:
        raise TraceError(
            f"the argument {name} cannot be copied ({type(error).__name__}: {error}), and a trace runs the body several times",
            hint="pass plain data, and get at connections and files inside tools",
            origin=caller_origin(),
        ) from error
