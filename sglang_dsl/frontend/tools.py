"""Tools: typed Python functions that a program calls through the runtime, outside of the program's thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import MethodType
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, TypeVar, overload

from ..errors import InvalidValueError, Origin, ProgramError, SpecError
from .annotations import hints_of
from .bindings import Convert
from .conversion import ANYTHING, Conversion
from .data import copied

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
Binding = Literal["instance", "class", "static"]


class _Options(NamedTuple):
    pure: bool
    idempotent: bool
    timeout_s: float | None


class Tool(Generic[P, R]):
    """A function made a tool with `@tool`. Calling it directly calls the function; `s.call(it, ...)` makes a Tool node.

    On a method it is looked up like one: `self.count` is the tool of that object, and two objects' tools stay apart, also where
    the tool is pure. pure: equal arguments give equal results and nothing else happens, so equal calls may be one call.
    idempotent: a call may be made again after a failure.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        options: _Options,
        binding: Binding = "instance",
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name
        self.key = f"{function.__module__}.{function.__qualname__}"
        self.pure, self.idempotent, self.timeout_s = self._options = options
        self._binding = binding
        self._types = _types(function)
        self._owner: Any = None  # the object or class it was looked up on
        self._unbound: Tool[..., R] | None = None
        self.__signature__ = inspect.signature(function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, called here and now."""
        function: Callable[..., R] = self.function
        return function(*args, **kwargs) if self._unbound is None else function(self._owner, *args, **kwargs)

    @overload
    def __get__(self: Tool[Concatenate[Any, Q], R], instance: object, owner: type | None = None) -> Tool[Q, R]: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., R]:
        """The tool of an object (of its class, over `@classmethod`), as for a method."""
        if self._binding == "static" or self._unbound is not None:
            return self
        if self._binding == "class":
            return self.bound_to(type(instance) if owner is None else owner)
        return self if instance is None else self.bound_to(instance)

    def bound_to(self, owner: Any) -> Tool[..., R]:
        """The tool with its first argument given."""
        bound: Tool[..., R] = object.__new__(Tool)
        bound.__dict__.update(self.__dict__)
        bound._owner, bound._unbound = owner, self
        bound.__signature__ = self._signature_bound
        return bound

    @functools.cached_property
    def _signature_bound(self) -> inspect.Signature:
        return self.__signature__.replace(parameters=list(self.__signature__.parameters.values())[1:])

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Tool) or self._unbound is None:
            return self is other
        return self._unbound is other._unbound and self._owner is other._owner

    def __hash__(self) -> int:
        return object.__hash__(self) if self._unbound is None else hash((id(self._unbound), id(self._owner)))

    def __repr__(self) -> str:
        return f"tool({self.name})" if self._unbound is None else f"tool({self.name} of {type(self._owner).__name__})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By qualified name, as its function would; a bound one as a method would."""
        if self._unbound is None:
            return str(self.function.__qualname__)
        if isinstance(self._owner, type):
            return getattr, (self._owner, self.function.__name__)
        return _bound, (self._unbound, self._owner)

    def __copy__(self) -> Tool[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tool[P, R]:
        return self

    # data --------------------------------------------------------------------------------------------------------

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any], origin: Origin) -> dict[str, Any]:
        """The call's arguments by name. Raises ProgramError where they do not fit the signature."""
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise ProgramError(
                f"{self.name}{self.__signature__}: {error}", hint="fix the arguments", origin=origin
            ) from error
        return bound.arguments

    def conversion(self, parameter: str) -> Conversion:
        """How data becomes what a parameter (or "return") is annotated as."""
        hint = self.hints.get(parameter, Any)
        return ANYTHING if hint is Any else Conversion(hint)

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """What the annotations mean, by parameter and "return". Those that name the class around are looked up now."""
        waiting = {name for name, hint in self._types.items() if hint is _LATER}
        if not waiting:
            return self._types
        owner = self._owner if isinstance(self._owner, type) else type(self._owner)
        found = hints_of(self.function, {kind.__name__: kind for kind in owner.__mro__})
        return {name: found.types.get(name, Any) if name in waiting else hint for name, hint in self._types.items()}

    def given(self, parameter: str, value: Any, origin: Origin) -> Any:
        """An argument as the annotation has it. Raises ProgramError, with the line, where the type refuses it."""
        try:
            return self.conversion(parameter)(value)
        except InvalidValueError as error:
            raise ProgramError(
                f"argument {parameter!r} of {self.name}: {error.what}",
                hint="pass what the annotation says, or change the annotation",
                origin=origin,
            ) from error

    def taken(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the annotations have them. Raises InvalidValueError, which names the argument."""
        taken = {}
        for name, value in arguments.items():
            try:
                taken[name] = self.conversion(name)(value)
            except InvalidValueError as error:
                raise InvalidValueError(f"argument {name!r}: {error.what}", text=error.text) from error
        return taken

    def invoke(self, /, **arguments: Any) -> Any:
        """For a stored graph, which knows JSON only: arguments become what the annotations say, the result JSON that comes
        back equal. Raises FormatError where it does not.
        """
        result = self._result(arguments)
        if inspect.isawaitable(result):
            return self._written_later(result)
        return self.to_json(result)

    async def _written_later(self, result: Awaitable[Any]) -> Any:
        return self.to_json(await result)

    def to_json(self, result: Any) -> Any:
        """A result as JSON for a record or a stored graph. Raises FormatError where no equal one comes back."""
        return self.conversion("return").to_json(result)

    def _result(self, arguments: Mapping[str, Any]) -> Any:
        """What the function gives for arguments that are converted first, itself converted."""
        function: Callable[..., Any] = self
        result = function(**self.taken({name: copied(value) for name, value in arguments.items()}))
        if inspect.isawaitable(result):
            return self._typed_later(result)
        return self.conversion("return")(result)

    async def _typed_later(self, result: Awaitable[Any]) -> Any:
        return self.conversion("return")(await result)

    @property
    def convert(self) -> Convert | None:
        """How a recorded result is read; None where its JSON is what is read."""
        hint = self._types.get("return", Any)
        return None if hint in _PLAIN else self._read

    def _read(self, value: Any) -> Any:
        return self.conversion("return")(value)


class ObjectTool:
    """A tool as a run calls it: it takes and gives the objects themselves. Equal for equal tools.

    takes_objects: says so to the runtime, which hands JSON to any other function.
    """

    __slots__ = ("tool",)

    takes_objects = True

    def __init__(self, tool: Tool[..., Any]) -> None:
        self.tool = tool

    def __call__(self, /, **arguments: Any) -> Any:
        """The result, or an awaitable of it."""
        return self.tool._result(arguments)

    def to_json(self, result: Any) -> Any:
        """A result as JSON for a record or a stored graph. Raises FormatError where no equal one comes back."""
        return self.tool.to_json(result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectTool) and self.tool == other.tool

    def __hash__(self) -> int:
        return hash(self.tool)


def _bound(unbound: Tool[..., R], owner: Any) -> Tool[..., R]:
    return unbound.bound_to(owner)


def tool_of(value: Any) -> Tool[..., Any] | None:
    """The tool that a value is, None where it is none."""
    if isinstance(value, MethodType) and isinstance(
        value.__func__, Tool
    ):  # `@classmethod` over `@tool`, since Python 3.13
        return value.__func__.bound_to(value.__self__)
    return value if isinstance(value, Tool) else None


# --- decorating -------------------------------------------------------------------------------------------------------


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, pure: bool = False, idempotent: bool = False, timeout_s: float | None = None
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    pure: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a typed Python function, or a method, a tool.

    Within a run its arguments and its result are the objects themselves. What comes as JSON (from a model's text, or where a
    stored graph or a replayed record calls) becomes what the annotations say.

    Raises:
        SpecError: not a function, takes `*args` or positional-only parameters, an annotation that names something unknown, or
            a bad option.
    """
    if timeout_s is not None and (
        isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0
    ):
        raise SpecError(f"timeout_s={timeout_s!r} is not above 0", hint="give seconds, or leave it out")
    if name is not None and (not isinstance(name, str) or not name):
        raise SpecError(f"name={name!r} is not a non-empty string", hint="leave it out to use the function's name")
    for option, value in (("pure", pure), ("idempotent", idempotent)):
        if not isinstance(value, bool):
            raise SpecError(f"{option}={value!r} is neither True nor False", hint=f"{option}=True")
    options = _Options(pure, idempotent, timeout_s)

    def decorate(wrapped: Callable[P, R]) -> Tool[P, R]:
        inner, binding = _unwrapped(wrapped)
        _check(inner)
        return Tool(inner, name=name or inner.__name__, options=options, binding=binding)

    return decorate if function is None else decorate(function)


def _unwrapped(function: Any) -> tuple[Any, Binding]:
    """The function itself, and how it is looked up on an object."""
    if isinstance(function, staticmethod):
        return function.__func__, "static"
    if isinstance(function, classmethod):
        return function.__func__, "class"
    return function, "instance"


def _check(function: Callable[..., Any]) -> None:
    if isinstance(function, Tool):
        raise SpecError(f"{function.name} is a tool already", hint="one @tool is enough")
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        what = f"a {type(function).__name__} object" if callable(function) else repr(function)
        raise SpecError(f"{what} is not a function", hint="put @tool on a def that calls it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SpecError(f"tool {function.__name__} is a generator", hint="return a list of what it yields")
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise SpecError(f"tool {function.__name__} has no signature: {error}", hint="wrap it in a def") from error
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SpecError(
                f"tool {function.__name__} takes {parameter}, but a tool's arguments go by name",
                hint="name every parameter",
            )


_PLAIN = (None, type(None), Any, str, int, float, bool, dict, list)
_LATER = "looked up when it is called"


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    """What the annotations mean. The class around a method does not exist yet: what names it is `_LATER`.

    Raises:
        SpecError: an annotation names what is found nowhere.
    """
    found = hints_of(function)
    around = function.__qualname__.split(".")[:-1]
    types = dict(found.types)
    for parameter, name in found.unknown.items():
        if name in around:
            types[parameter] = _LATER
            continue
        where = "what it returns" if parameter == "return" else f"parameter {parameter!r}"
        raise SpecError(
            f"tool {function.__name__}: the annotation of {where} cannot be resolved: {name!r} is not defined here",
            hint=f"define or import {name} above the tool, at run time too (not only under TYPE_CHECKING)",
        )
    return types
