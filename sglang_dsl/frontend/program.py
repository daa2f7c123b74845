"""`@program`: a function whose first parameter is a state, and the ways to run it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from ..errors import DecorationError, Origin, ProgramError
from ..ir.execution import BatchItem, RunSpec, check_models_allowed, resolve
from ..ir.graph import Graph
from ..ir.specs import RunOptions
from .batch import BATCH_CONCURRENCY, Interrupted, arun_all, calls_of, run_all
from .call_sites import CallSites, caller_origin
from .greenlets import on_some_stack
from .session import Result, Session, settled, use
from .state import State, cursor_of, nested
from .stream import Running, Stream

if TYPE_CHECKING:
    from ..ir.explain import Explanation
    from .expressions import Joined, Lazy

P = ParamSpec("P")
R = TypeVar("R")
Body = Callable[..., Any]
Binding = Literal["instance", "class"]
_OPTION_NAMES = frozenset(field.name for field in fields(RunOptions))


class Program(Generic[P, R]):
    """A prompt program. P: its parameters after the state; R: what it returns.

    The body runs exactly once per run, on the caller's thread (`start` and `stream`: on one of their own). Parameter
    names are the program's own; `options=` (and `symbolic=` of `trace`) are taken only where the program has no parameter
    so called, and `with use(...)` always works.
    """

    def __init__(
        self,
        function: Body,
        *,
        pure: bool = False,
        origin: Origin | None = None,
        bound: Mapping[str, Any] | None = None,
        method_of: object = None,
        sites: CallSites | None = None,
        parameters: tuple[str, ...] | None = None,
        binding: Binding = "instance",
        root: Program[..., R] | None = None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = function.__name__
        self.pure = pure
        self.language = "native"  # what hints are worded for; "sglang" for a program in SGLang's style
        self.keep_failures = False  # see `Session`
        self.asynchronous = inspect.iscoroutinefunction(function)
        self.origin = origin or Origin(function.__code__.co_filename, function.__code__.co_firstlineno, self.name)
        self.sites = sites or CallSites(self.name, function.__code__)
        self.bound = dict(bound or {})
        self._method_of = method_of
        self._binding = binding
        self._origin_program: Program[..., R] = self if root is None else root
        self.parameters = _own_parameters(function, binding) if parameters is None else parameters

    # calling inside another program ------------------------------------------------------------------------------

    def __call__(self, state: State, *args: P.args, **kwargs: P.kwargs) -> R:
        """Inside another program: append to its state, in a scope of one's own, and give back what the body returns."""
        if not isinstance(state, State):
            raise ProgramError(
                f"{self.name}(...) was called without a state",
                hint=f"{self.name}.run(...) runs it; inside a program: {self.name}(s, ...)",
                origin=caller_origin(),
            )
        inner = nested(state, self.name, self.function.__code__)
        body = partial(self.call, inner, args, kwargs)
        result: R = body() if cursor_of(inner).depth % 8 or self.asynchronous else on_some_stack(body)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Program[..., R]:
        if self._method_of is not None:
            return self
        if self._binding == "class":
            return self._copy(method_of=type(instance) if owner is None else owner)
        return self if instance is None else self._copy(method_of=instance)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the function; of a method without what it was looked up on."""
        signature = inspect.signature(self.function)
        if self._method_of is None:
            return signature
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Program):
            return self is other
        mine, theirs = (self._origin_program, self._method_of), (other._origin_program, other._method_of)
        return all(a is b for a, b in zip(mine, theirs, strict=True)) and not (self.bound or other.bound)

    def __hash__(self) -> int:
        return hash((id(self._origin_program), id(self._method_of)))

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By qualified name, as its function would; with what was given to it since."""
        root = self._origin_program
        if root is self:
            return str(self.function.__qualname__)
        if isinstance(self._method_of, type) and not self.bound:
            return getattr, (self._method_of, root.function.__name__)
        return _restored, (root, self.bound, self._method_of)

    def __copy__(self) -> Program[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Program[P, R]:
        return self

    def bind(self, **arguments: Any) -> Program[..., R]:
        """The program with some arguments given; what a run states itself wins."""
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values()):
            raise ProgramError(
                f"{self.name} has no parameter {unknown[0]!r}; it has: {', '.join(self.parameters) or 'none'}",
                hint="bind parameters of the program",
                origin=caller_origin(),
            )
        return self._copy(bound={**self.bound, **arguments})

    def _copy(self, *, bound: Mapping[str, Any] | None = None, method_of: object = None) -> Program[..., R]:
        return Program(
            self.function,
            pure=self.pure,
            origin=self.origin,
            bound=self.bound if bound is None else bound,
            method_of=self._method_of if method_of is None else method_of,
            sites=self.sites,
            parameters=self.parameters,
            binding=self._binding,
            root=self._origin_program,
        )

    def call(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the body on a state, with the bound arguments that are not given."""
        if self.bound:
            given = set(self.parameters[: len(args)])
            kwargs = {**{name: value for name, value in self.bound.items() if name not in given}, **kwargs}
        if self._method_of is not None:
            return self.function(self._method_of, state, *args, **kwargs)
        return self.function(state, *args, **kwargs)

    # running -----------------------------------------------------------------------------------------------------

    @overload
    def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]: ...
    @overload
    def run(self, *args: Any, options: RunOptions, **kwargs: Any) -> Result[R]: ...
    def run(self, *args: Any, **kwargs: Any) -> Result[Any]:
        """Run to the end.

        Raises:
            Interrupted: Ctrl-C; a KeyboardInterrupt that holds what had finished. Else whatever the body raised, or why
                the program's own path failed.
        """
        result = self.attempt(*args, **kwargs)
        if isinstance(result.error, KeyboardInterrupt):
            raise Interrupted([result]) from result.error
        if result.error is not None:
            raise result.error
        return result

    def attempt(self, *args: Any, **kwargs: Any) -> Result[R]:
        """Like `run`, but a run that fails, or that Ctrl-C ends, gives its Result: `error` says why."""
        session = self._open(*self._split(args, kwargs))
        return session.execute_async() if self.asynchronous else session.begin()()

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Running[R]: ...
    @overload
    def start(self, *args: Any, options: RunOptions, **kwargs: Any) -> Running[R]: ...
    def start(self, *args: Any, **kwargs: Any) -> Running[Any]:
        """Begin a run whose body has a thread of its own; returns a handle to wait for, look into or cancel."""
        return Running.begin(self._open(*self._split(args, kwargs)), asynchronous=self.asynchronous, name=self.name)

    @overload
    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]: ...
    @overload
    def stream(self, *args: Any, options: RunOptions, **kwargs: Any) -> Stream[R]: ...
    def stream(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """The text as it is written, in order: `for piece in prog.stream(...)`; `.of("name")` follows one name, in all
        branches. Also an async iterator. Leaving the loop early cancels the run.
        """
        args, kwargs, options = self._split(args, kwargs)
        opened = partial(self._open, args, kwargs, options)
        return Stream(opened, asynchronous=self.asynchronous, name=self.name)

    @overload
    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]: ...
    @overload
    async def arun(self, *args: Any, options: RunOptions, **kwargs: Any) -> Result[R]: ...
    async def arun(self, *args: Any, **kwargs: Any) -> Result[Any]:
        """Like `run`, awaited: an `async def` body runs on this event loop, any other in a thread. Cancelling the task
        cancels the run.
        """
        result = await self._aexecute(*self._split(args, kwargs))
        if result.error is not None:
            raise result.error
        return result

    def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        """`async for piece in prog.astream(...)`."""
        return self.stream(*args, **kwargs).__aiter__()

    def run_batch(
        self,
        items: Iterable[Any],
        *,
        options: RunOptions | None = None,
        concurrency: int = BATCH_CONCURRENCY,
        progress: bool = False,
    ) -> list[Result[R]]:
        """Run once per item; one Result each, in the items' order. A failed item holds its error and stops no other.

        An item is a dict of arguments by name, a tuple of positional ones, or else the only argument. `concurrency` bounds the
        runs that are under way at a time, each on a thread (an `async def` program: on one thread in all).

        Raises:
            Interrupted: Ctrl-C; it holds all results so far.
        """
        collected = dict(self.run_batch_iter(items, options=options, concurrency=concurrency, progress=progress))
        return [collected[index] for index in sorted(collected)]

    def run_batch_iter(
        self,
        items: Iterable[Any],
        *,
        options: RunOptions | None = None,
        concurrency: int = BATCH_CONCURRENCY,
        progress: bool = False,
    ) -> Iterator[tuple[int, Result[R]]]:
        """Like `run_batch`, giving (index, Result) as the runs finish."""
        check_models_allowed(f"ran the program {self.name!r}")
        return run_all(
            [partial(self._open, *call, settled(options), place) for call, place in calls_of(items)],
            concurrency=concurrency,
            progress=progress,
            asynchronous=self.asynchronous,
            label=self.name,
        )

    async def arun_batch(
        self, items: Iterable[Any], *, options: RunOptions | None = None, concurrency: int = BATCH_CONCURRENCY
    ) -> list[Result[R]]:
        """Like `run_batch`, awaited; an `async def` program needs no threads."""
        opened = [partial(self._aexecute, *call, settled(options), place) for call, place in calls_of(items)]
        return await arun_all(opened, concurrency)

    # tracing -----------------------------------------------------------------------------------------------------

    @overload
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Graph: ...
    @overload
    def trace(self, *args: Any, symbolic: Iterable[str] = (), strict: bool = False, **kwargs: Any) -> Graph: ...
    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph, without a model. Arguments named in `symbolic` stay unknown. See `tracing/tracer.py`."""
        from .tracing.tracer import trace

        symbolic = () if "symbolic" in self.parameters else kwargs.pop("symbolic", ())
        strict = False if "strict" in self.parameters else kwargs.pop("strict", False)
        return trace(self, args, kwargs, symbolic=tuple(symbolic), strict=strict)

    @overload
    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation: ...
    @overload
    def explain(self, *args: Any, options: RunOptions, **kwargs: Any) -> Explanation: ...
    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a run would cost, per node, on the model of the options' backend: traced, nothing is computed."""
        from ..ir.explain import explain

        args, kwargs, options = self._split(args, kwargs)
        with use(options):
            graph = self.trace(*args, **kwargs)
        return explain(graph, resolve(options.backend).meter())

    def export(self, *args: Any, **kwargs: Any) -> Graph:
        """The program as a graph that runs without its Python source (`execute`, `ir.json_format.save`). Takes what `trace`
        takes, and `registry`: tools and Python keys known to whoever runs it; `trials`: how many sets of values it is tried on.

        Raises:
            ExportError: a question that tracing could not follow, a tool that is not registered, or values for which the
                graph would do something else than the body.
        """
        from .tracing.export import export

        symbolic = () if "symbolic" in self.parameters else kwargs.pop("symbolic", ())
        registry = () if "registry" in self.parameters else kwargs.pop("registry", ())
        trials = None if "trials" in self.parameters else kwargs.pop("trials", None)
        return export(self, args, kwargs, symbolic=symbolic, registry=registry, trials=trials)

    # inside ------------------------------------------------------------------------------------------------------

    def _split(self, args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], RunOptions]:
        options = None if "options" in self.parameters else kwargs.pop("options", None)
        for name in kwargs:
            if name in _OPTION_NAMES and name not in self.parameters:
                self._refuse_option(name)
        return args, kwargs, settled(options)

    def _refuse_option(self, name: str) -> None:
        if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values()):
            raise ProgramError(
                f"{self.name} has no parameter {name!r}: it is an option of the run",
                hint=f"options=RunOptions({name}=...), or: with use({name}=...):",
                origin=caller_origin(),
            )

    def _open(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions, batch: BatchItem | None = None
    ) -> Session[R]:
        arguments = {**self.bound, **dict(zip(self.parameters, args, strict=False)), **kwargs}
        spec = RunSpec(program=self.name, options=options, arguments=arguments, batch=batch)
        return Session(
            partial(self.call, args=args, kwargs=kwargs),
            spec,
            self.sites,
            self.origin,
            asynchronous=self.asynchronous,
            keep_failures=self.keep_failures,
        )

    async def _aexecute(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions, batch: BatchItem | None = None
    ) -> Result[R]:
        session = self._open(args, kwargs, options, batch)
        if self.asynchronous:
            return await session.aexecute()
        import asyncio

        try:
            return await asyncio.to_thread(session.execute)
        except asyncio.CancelledError:
            session.cancel("the task was cancelled")
            raise

    def __repr__(self) -> str:
        return f"<program {self.name} at {self.origin}>"


def session_of(program: Program[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Session[R]:
    """A run of a program, ready to be executed, with the options of its surroundings."""
    return program._open(args, kwargs, settled(None))


def _restored(root: Program[..., R], bound: Mapping[str, Any], method_of: object) -> Program[..., R]:
    return root._copy(bound=bound, method_of=method_of)


# --- decorating --------------------------------------------------------------------------------------------------------


if TYPE_CHECKING:

    class Method(Program[..., R], Generic[P, R]):
        """What a type checker sees of a program in a class body: looked up on an object it is a Program of its parameters."""

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Program[..., R]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Program[P, R]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Program[..., R]: ...

    class Decorator(Protocol):
        """What `program(pure=...)` gives."""

        @overload
        def __call__(self, function: Callable[Concatenate[State, P], Awaitable[R]], /) -> Program[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[State, P], Joined[R]], /) -> Program[P, list[R]]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[State, P], Lazy[R]], /) -> Program[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[State, P], R], /) -> Program[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[Any, State, P], Awaitable[R]], /) -> Method[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[Any, State, P], Joined[R]], /) -> Method[P, list[R]]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[Any, State, P], Lazy[R]], /) -> Method[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[Any, State, P], R], /) -> Method[P, R]: ...


@overload
def program(function: Callable[Concatenate[State, P], Awaitable[R]], /) -> Program[P, R]: ...
@overload
def program(function: Callable[Concatenate[State, P], Joined[R]], /) -> Program[P, list[R]]: ...
@overload
def program(function: Callable[Concatenate[State, P], Lazy[R]], /) -> Program[P, R]: ...
@overload
def program(function: Callable[Concatenate[State, P], R], /) -> Program[P, R]: ...
@overload
def program(function: Callable[Concatenate[Any, State, P], Awaitable[R]], /) -> Method[P, R]: ...
@overload
def program(function: Callable[Concatenate[Any, State, P], Joined[R]], /) -> Method[P, list[R]]: ...
@overload
def program(function: Callable[Concatenate[Any, State, P], Lazy[R]], /) -> Method[P, R]: ...
@overload
def program(function: Callable[Concatenate[Any, State, P], R], /) -> Method[P, R]: ...
@overload
def program(*, pure: bool = False) -> Decorator: ...
def program(function: Any = None, /, *, pure: bool = False) -> Any:
    """Make a function a prompt program. Its first parameter (after `self` in a class) is the state.

    pure: the body has no effects besides its appends, so that running it once more, to look ahead, does no harm.

    Raises:
        DecorationError: a generator, no state parameter, or not a function.
    """
    if function is None:
        return lambda wrapped: _decorated(wrapped, pure)
    return _decorated(function, pure)


def _decorated(function: Any, pure: bool) -> Program[..., Any]:
    origin = caller_origin()
    if not isinstance(pure, bool):
        raise DecorationError(f"pure={pure!r} is neither True nor False", hint="@program(pure=True)", origin=origin)
    binding: Binding = "instance"
    if isinstance(function, classmethod):
        binding, function = "class", function.__func__
    if isinstance(function, staticmethod):
        raise DecorationError("@program stands above @staticmethod", hint="@staticmethod above @program", origin=origin)
    if isinstance(function, Program):
        raise DecorationError(f"{function.name} is a program already", hint="one @program is enough", origin=origin)
    if not inspect.isfunction(function):
        raise DecorationError(f"{function!r} is not a function", hint="put @program on a def", origin=origin)
    here = Origin(function.__code__.co_filename, function.__code__.co_firstlineno, function.__name__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DecorationError(
            f"{function.__name__} is a generator: its body would not run when it is called",
            hint="return the values; prog.stream(...) gives text while it is written",
            origin=here,
        )
    _state_parameter(function, here, binding)
    return Program(function, pure=pure, origin=here, binding=binding)


def _is_method(function: Any, binding: Binding) -> bool:
    """Whether the first parameter is an object or a class, not the state."""
    if binding == "class":
        return True
    parameters = list(inspect.signature(function).parameters)
    return bool(parameters) and parameters[0] in ("self", "cls")


def _state_parameter(function: Any, origin: Origin, binding: Binding) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    if _is_method(function, binding):
        parameters = parameters[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise DecorationError(
            f"{function.__name__} has no parameter for the state",
            hint=f"def {function.__name__}(s, ...): s is what the program appends to",
            origin=origin,
        )


def _own_parameters(function: Any, binding: Binding) -> tuple[str, ...]:
    """Names of the parameters after the state, in order; those of `*args` and `**kwargs` are none."""
    parameters = list(inspect.signature(function).parameters.values())
    skipped = 2 if _is_method(function, binding) else 1
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters[skipped:] if p.kind in named)
