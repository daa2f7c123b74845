"""What annotations mean: names in them are looked up where Python would, and where only their author can see.

Under `from __future__ import annotations` an annotation is text. Its names are found, in this order, in the function's
closure, in the functions and classes that its definition stands in (while they run), in its module, among the builtins,
and with whoever calls. One name that is found nowhere makes its own annotation unknown, and no other.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, MappingProxyType, SimpleNamespace
from typing import Any, ForwardRef, NamedTuple, get_args, get_type_hints, is_typeddict

_PACKAGE = __name__.partition(".")[0]
_ABSENT = object()


class Hints(NamedTuple):
    """types: by parameter (and "return") what its annotation means. unknown: by parameter why its annotation means nothing."""

    types: dict[str, Any]
    unknown: dict[str, str]


def hints_of(function: Any, known: Mapping[str, Any] | None = None) -> Hints:
    """What the annotations of a function mean, each on its own. Call it on the thread that defines the function.

    known: names to be found before all others.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))
    types: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name, annotation in _annotations(function).items():
        try:
            types[name] = _meant(annotation, function, known or {})
        except NameError as error:
            unknown[name] = error.name or str(error)
        except Exception as error:  # noqa: BLE001  an annotation is any expression, and so is what it raises
            unknown[name] = f"{type(error).__name__}: {error}"
    return Hints(types, unknown)


def complete(wanted: Any) -> None:
    """Find the names that the annotations of local classes mention: of `wanted`, and of all that it is made of.

    Dataclasses, TypedDicts, NamedTuples and pydantic models get their annotations resolved, in place. What is found nowhere
    stays as it is.
    """
    _complete(wanted, set())


def _complete(wanted: Any, seen: set[int]) -> None:
    if id(wanted) in seen:
        return
    seen.add(id(wanted))
    for argument in get_args(wanted):
        _complete(argument, seen)
    if not isinstance(wanted, type):
        return
    if hasattr(wanted, "model_rebuild"):
        if not getattr(wanted, "__pydantic_complete__", True):
            bases = [base for base in wanted.__mro__ if not base.__module__.startswith(("pydantic", "builtins"))]
            names = {name: value for base in bases for name, value in _complete_names(base, seen).items()}
            wanted.model_rebuild(raise_errors=False, _types_namespace=names)
    elif is_typeddict(wanted):
        _complete_class(wanted, seen)
    elif dataclasses.is_dataclass(wanted) or issubclass(wanted, tuple):
        for base in wanted.__mro__:
            _complete_class(base, seen)


def _complete_names(owner: type, seen: set[int]) -> dict[str, Any]:
    """The names in a class's annotations that are found, each of them complete."""
    annotations = _annotations(owner)
    names = {name for annotation in annotations.values() for name in _names_in(annotation)}
    found = {name: value for name in names if (value := _looked_up(name, owner)) is not _ABSENT}
    for value in (*found.values(), *annotations.values()):
        _complete(value, seen)
    return found


def _complete_class(owner: type, seen: set[int]) -> None:
    _complete_names(owner, seen)
    annotations = _annotations(owner)
    meant = {}
    for name, annotation in annotations.items():
        try:
            meant[name] = _meant(annotation, owner)
        except Exception:  # noqa: BLE001  whoever needs this annotation will say what is wrong with it
            meant[name] = annotation
    if any(meant[name] is not annotation for name, annotation in annotations.items()):
        owner.__annotations__ = meant
        for field in dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ():
            field.type = meant.get(field.name, field.type)


def _annotations(owner: Any) -> dict[str, Any]:
    """The annotations as they are written, of a class only its own."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF))
    return dict(inspect.get_annotations(owner))


def _meant(annotation: Any, owner: Any, known: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """An annotation with its names looked up for `owner`. Raises NameError, and whatever the expression raises."""
    names = {name: value for name in _names_in(annotation) if (value := _looked_up(name, owner)) is not _ABSENT}
    names.update(known)
    holder = SimpleNamespace(__annotations__={"it": annotation}, __type_params__=getattr(owner, "__type_params__", ()))
    if isinstance(owner, type):
        holder = type("holder", (), {"__annotations__": {"it": annotation}, "__module__": owner.__module__})  # type: ignore[assignment]
    return get_type_hints(holder, vars(builtins) | names, names, include_extras=True)["it"]


def _names_in(annotation: Any) -> Iterator[str]:
    """The names that an annotation mentions, in texts inside it, too."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            code = compile(annotation, "<annotation>", "eval")
        except SyntaxError:
            return
        yield from _names_of(code)
        return
    for argument in get_args(annotation):
        yield from _names_in(argument)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield from _names_in(constant)
        elif isinstance(constant, CodeType):
            yield from _names_of(constant)


def _looked_up(name: str, owner: Any) -> Any:
    """What a name stands for where `owner`, a function or class, was defined."""
    for scope in _scopes(owner):
        found = scope.get(name, _ABSENT)
        if found is not _ABSENT:
            return found
    return _ABSENT


def _scopes(owner: Any) -> Iterator[Mapping[str, Any]]:
    code = getattr(owner, "__code__", None)
    if code is not None and owner.__closure__:
        yield {name: cell.cell_contents for name, cell in zip(code.co_freevars, owner.__closure__, strict=True)
               if _is_filled(cell)}  # fmt: skip
    frames = list(_user_frames())
    around = [frame for frame in frames if _encloses(frame.f_code, owner)]
    for frame in around:
        yield frame.f_locals
    if isinstance(owner, type):
        yield {owner.__name__: owner}
        yield vars(sys.modules.get(owner.__module__, builtins))
    else:
        yield owner.__globals__
    yield vars(builtins)
    for frame in frames:
        yield frame.f_locals


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  asking is the only way to find out
    except ValueError:
        return False
    return True


def _user_frames() -> Iterator[FrameType]:
    """The frames of this thread outside of this package, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE:
            yield frame
        frame = frame.f_back


def _encloses(code: CodeType, owner: Any) -> bool:
    """Whether what `code` runs is the function or class in whose body `owner` was defined."""
    name = getattr(owner, "__qualname__", "")
    return name.startswith((f"{code.co_qualname}.<locals>.", f"{code.co_qualname}."))
