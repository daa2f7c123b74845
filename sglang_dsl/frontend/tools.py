"""Tools: typed Python functions that a program calls through the runtime, outside of the program's thread."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from ..errors import Origin, ProgramError, SpecError
from ..ir.nodes import Constant, DictOf, Expression
from .bindings import Convert
from .outputs import output_of

P = ParamSpec("P")
R = TypeVar("R")


class Tool(Generic[P, R]):
    """A function made a tool with `@tool`. Calling it directly calls the function; `s.call(it, ...)` makes a Tool node.

    pure: equal arguments give equal results and nothing else happens, so equal calls may be one call. idempotent: a
    call may be made again after a failure.
    """

    def __init__(
        self, function: Callable[P, R], *, name: str, pure: bool, idempotent: bool, timeout_s: float | None
    ) -> None:
        self.function = function
        self.name = name
        self.key = f"{function.__module__}.{function.__qualname__}"
        self.pure = pure
        self.idempotent = idempotent
        self.timeout_s = timeout_s
        self.__doc__ = function.__doc__
        self._signature = inspect.signature(function)
        self._types = _types(function)
        self.convert = _converter(self._types.get("return"))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, called here and now."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"tool({self.name})"

    def invoke(self, **arguments: Any) -> Any:
        """What the runtime calls: JSON arguments become what the annotations say, the result becomes JSON."""
        for name, value in arguments.items():
            convert = _converter(self._types.get(name))
            arguments[name] = value if convert is None else convert(value)
        function: Callable[..., Any] = self.function
        result = function(**arguments)
        if inspect.isawaitable(result):
            return self._dumped_later(result)
        return self._dumped(result)

    async def _dumped_later(self, result: Awaitable[Any]) -> Any:
        return self._dumped(await result)

    def _dumped(self, result: Any) -> Any:
        if "return" not in self._types:
            return result
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(result)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any], origin: Origin) -> dict[str, Any]:
        """The call's arguments by name. Raises ProgramError where they do not fit the signature."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ProgramError(
                f"{self.name}{self._signature}: {error}", hint="fix the arguments", origin=origin
            ) from error
        return bound.arguments

    def as_dict(self, arguments: Expression) -> DictOf:
        """Arguments as the Tool node holds them."""
        if isinstance(arguments, DictOf):
            return arguments
        if isinstance(arguments, Constant) and isinstance(arguments.value, dict):
            return DictOf(tuple((key, Constant(value)) for key, value in arguments.value.items()))
        raise TypeError(f"{arguments!r} is not a dict of arguments")


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
    """Make a typed Python function a tool. Its arguments and its result are JSON.

    Raises:
        SpecError: not a function, takes `*args` or positional-only parameters, or a bad timeout.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise SpecError(f"timeout_s={timeout_s!r} is not above 0", hint="give seconds, or leave it out")

    def decorate(wrapped: Callable[P, R]) -> Tool[P, R]:
        _check(wrapped)
        return Tool(wrapped, name=name or wrapped.__name__, pure=pure, idempotent=idempotent, timeout_s=timeout_s)

    return decorate if function is None else decorate(function)


def _check(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise SpecError(f"{function!r} is not a function", hint="@tool goes on a plain function")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SpecError(
                f"tool {function.__name__} takes {parameter}, but a tool's arguments go by name",
                hint="name every parameter",
            )


_PLAIN = (None, type(None), Any, str, int, float, bool, dict, list)


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations that say more than plain JSON, by parameter and "return"."""
    try:
        hints = get_type_hints(function)
    except NameError:  # an annotation that only a type checker can resolve
        return {}
    return {name: hint for name, hint in hints.items() if hint not in _PLAIN}


def _converter(wanted: Any) -> Convert | None:
    """From JSON back to the type; None where that is plain JSON."""
    return None if wanted is None else output_of(wanted).convert
