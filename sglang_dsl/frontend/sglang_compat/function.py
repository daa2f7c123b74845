"""`@sgl.function`: run, run_batch, bind, trace, cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from functools import partial
from typing import Any, Literal

from ...errors import DecorationError, SpecError
from ...ir.execution import Executor
from ...ir.graph import Graph
from ...ir.specs import RunOptions
from ..batch import run_all
from ..call_sites import Sites, caller_origin
from ..program import Program
from ..result import Result
from ..session import settled, use
from ..state import State, cursor_of
from .calls import Sampling, run_sampling
from .states import ProgramState

_SAMPLING_NAMES = frozenset(f.name for f in fields(Sampling))
_RUN_NAMES = frozenset({"stream", "backend", "use_thread"})
Backend = str | Executor | None
Call = tuple[tuple[Any, ...], dict[str, Any]]
_inside_body: ContextVar[bool] = ContextVar("sglang_dsl.sglang_inside_body", default=False)


class SglFunction:
    """A program in SGLang's style. Its body gets a ProgramState.

    `run` takes the sampling parameters of SGLang and `stream`, `backend`, `use_thread`, except for names that the
    program's own parameters have: those are the program's.
    """

    def __init__(self, func: Callable[..., Any], bind_arguments: Mapping[str, Any] | None = None) -> None:
        self.func = func
        self.__name__ = func.__name__
        self.__doc__ = func.__doc__
        self.bind_arguments = dict(bind_arguments or {})
        self.arg_names, self._takes_more = _parameters(func)
        self._program: Program[..., Any] = Program(
            _adapted(func), sites=Sites(func.__name__, func.__code__), parameters=self.arg_names
        )
        self._program.keep_failures = True
        self._program.language = "sglang"

    def bind(self, **kwargs: Any) -> SglFunction:
        """The program with some arguments given; what a run states itself wins."""
        unknown = [name for name in kwargs if name not in self.arg_names]
        if unknown:
            raise SpecError(f"{self.__name__} has no parameter {unknown[0]!r}", hint=", ".join(self.arg_names))
        return SglFunction(self.func, {**self.bind_arguments, **kwargs})

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program; returns its final state. With `stream=True` it returns at once, and `text_iter()` follows.

        What the body raises is raised (streamed: by the iteration). A call that failed raises when its variable is
        read, and `error()` tells, whoever has seen it. Inside the body of another program it returns when the body has
        ended, and what that did not read goes on meanwhile. `use_thread` has no effect: there is no thread per state.
        """
        sampling, control = self._split(kwargs)
        with self._surroundings(sampling, control.get("backend")):
            call = self._arguments(args, kwargs)
            if control.get("stream"):
                return self._streamed(call)
            session = self._program._open(*call, settled(None))
            finish = session.begin()
        if not _inside_body.get():
            return _state_of(finish(), raising=True)
        state = ProgramState(session.state)
        state.finish = finish
        if session.raised_by_body:
            return _state_of(finish(), raising=True)
        return state

    __call__ = run

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **sampling: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once per item; the states in the items' order, as they come with `generator_style`. An item that failed loses
        no other: its state's `error()` tells, and reading it raises.
        """
        unknown = sorted(set(sampling) - _SAMPLING_NAMES)
        if unknown:
            raise SpecError(f"run_batch has no parameter {unknown[0]!r}", hint=", ".join(sorted(_SAMPLING_NAMES)))
        calls = [self._item(item) for item in batch_kwargs]
        concurrency = min(96, max(len(calls), 1)) if num_threads == "auto" else num_threads
        states = self._batch(calls, Sampling(**sampling), backend, concurrency, progress_bar)
        return states if generator_style else list(states)

    def trace(self, *, backend: Backend = None, **kwargs: Any) -> Graph:
        """The graph, without a model; arguments that are not given stay unknown."""
        from ..tracing.tracer import trace

        given = {**self.bind_arguments, **kwargs}
        unknown = tuple(name for name in self.arg_names if name not in given)
        with self._surroundings(Sampling(), backend):
            return trace(self._program, (), given, symbolic=unknown, strict=False)

    def cache(self, backend: Backend = None) -> None:
        """Nothing to do: prefixes are shared within and between runs anyway."""

    def _batch(
        self, calls: list[Call], sampling: Sampling, backend: Backend, concurrency: int, progress: bool
    ) -> Iterator[ProgramState]:
        waiting: dict[int, ProgramState] = {}
        following = 0
        with self._surroundings(sampling, backend):
            results = run_all(
                [partial(self._program._open, *call, settled(None)) for call in calls],
                concurrency=concurrency,
                progress=progress,
                asynchronous=False,
                label=self.__name__,
            )
        for index, result in results:
            waiting[index] = _state_of(result, raising=False)
            while following in waiting:
                yield waiting.pop(following)
                following += 1

    def _streamed(self, call: Call) -> ProgramState:
        stream = self._program._stream(*call, settled(None))
        running = stream.begin()
        state = ProgramState(running.state)
        state.stream = stream
        return state

    def _split(self, kwargs: dict[str, Any]) -> tuple[Sampling, dict[str, Any]]:
        own = set(self.arg_names)
        sampling = {name: kwargs.pop(name) for name in list(kwargs) if name in _SAMPLING_NAMES - own}
        control = {name: kwargs.pop(name) for name in list(kwargs) if name in _RUN_NAMES - own}
        return Sampling(**sampling), control

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        if len(args) <= len(self.arg_names):
            return (), {**self.bind_arguments, **dict(zip(self.arg_names, args, strict=False)), **kwargs}
        if not self._takes_more:
            raise TypeError(f"{self.__name__} takes {len(self.arg_names)} arguments, {len(args)} were given")
        bound = {name: value for name, value in self.bind_arguments.items() if name not in self.arg_names}
        return tuple(args), {**bound, **kwargs}

    def _item(self, item: Mapping[str, Any] | Sequence[Any]) -> Call:
        return self._arguments((), item) if isinstance(item, Mapping) else self._arguments(item, {})

    def _surroundings(self, sampling: Sampling, backend: Backend) -> _Surroundings:
        return _Surroundings(sampling, backend)


class _Surroundings:
    """What a run's own calls and the programs run inside its body take over: its sampling and its backend."""

    def __init__(self, sampling: Sampling, backend: Backend) -> None:
        self._sampling = sampling
        self._backend = backend

    def __enter__(self) -> None:
        self._token = run_sampling.set(self._sampling.over(run_sampling.get()))
        self._use = use(RunOptions(backend=self._backend))
        self._use.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._use.__exit__(None, None, None)
        run_sampling.reset(self._token)


def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """SGLang's decorator. `num_api_spec_tokens` has no effect: calls are not speculated over an API.

    Raises:
        DecorationError: an async function or a generator (here as everywhere their body would not run), or one without
            a state parameter.
    """
    if func is None:
        return lambda wrapped: function(wrapped)
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func):
        raise DecorationError(
            f"{func.__name__} is async or a generator",
            hint="@sglang_dsl.program takes async def",
            origin=caller_origin(),
        )
    if not inspect.isfunction(func) or not inspect.signature(func).parameters:
        raise DecorationError(f"{func!r} has no parameter for the state", hint="def f(s, ...)", origin=caller_origin())
    return SglFunction(func)


def _parameters(func: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """Names of the parameters after the state that can be given by position (or, behind `*`, by name), and whether there may
    be more of them.
    """
    parameters = list(inspect.signature(func).parameters.values())[1:]
    more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p.name for p in parameters if p.kind in kinds or (not more and p.kind is p.KEYWORD_ONLY)]
    return tuple(named), more


def _adapted(func: Callable[..., Any]) -> Callable[..., Any]:
    """The body as one of ours: what it is given is wrapped."""

    def body(s: State, /, *args: Any, **kwargs: Any) -> Any:
        token = _inside_body.set(True)
        try:
            found = func(ProgramState(s), *args, **kwargs)
        finally:
            _inside_body.reset(token)
        # SGLang's programs end with `return s`, which says nothing that the graph does not
        return None if isinstance(found, ProgramState) and cursor_of(s).recorder.tracing else found

    body.__name__ = func.__name__
    body.__doc__ = func.__doc__
    return body


def _state_of(result: Result[Any], *, raising: bool) -> ProgramState:
    if raising and result.error is not None and result.raised_by_body:
        raise result.error
    state = ProgramState(result.state)
    state._result = result
    return state
