"""`@sgl.function` and what its programs append to: SglFunction, ProgramState, and the group that `fork` gives."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import partial
from types import TracebackType
from typing import Any, Literal, overload

from ...errors import DecorationError, ProgramError, SpecError
from ...ir.execution import Executor, Meta
from ...ir.graph import Graph
from ...ir.specs import JoinMode, RunOptions
from ..batch import Call, run_all
from ..bindings import ManualBinding
from ..branches import Forked, JoinRequest, fork
from ..call_sites import CallSite, CallSites, caller_origin
from ..expressions import Chain, WholeTurn
from ..program import Program, session_of
from ..session import Result, use
from ..state import NamedSpan, OpenTurn, State, cursor_of
from ..statement import say
from ..stream import Chunk, Stream
from .calls import Sampling, meta_info, partial_info, run_sampling

_SAMPLING_NAMES = frozenset(f.name for f in fields(Sampling))
_RUN_NAMES = frozenset({"stream", "backend", "use_thread"})
Backend = str | Executor | None
_inside_body: ContextVar[bool] = ContextVar("sglang_dsl.sglang_inside_body", default=False)
Gather = Literal["gather_variable", "concate_and_append"]


class ProgramState:
    """What a program appends to, with SGLang's methods. Over a State of ours, which is `state.inner`."""

    def __init__(self, inner: State) -> None:
        self.inner = inner
        self._cursor = cursor_of(inner)
        self.stream: Stream[Any] | None = None
        self.finish: Callable[[], Result[Any]] | None = None  # of a run that is under way: waits for its end
        self._result: Result[Any] | None = None
        self._ending = threading.Lock()

    # appending ---------------------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> ProgramState:
        self._say(other, self._site(sys._getframe(1)))
        return self

    def _say(self, item: Any, site: CallSite) -> None:
        say(self._cursor, item, site)

    def _site(self, frame: Any) -> CallSite:
        return self._cursor.recorder.sites.at(frame)

    def system(self, expr: Any = None) -> Any:
        """With an expression: append that turn (what it returns adds nothing more). Without: a with-form."""
        return self._turn("system", expr, self._site(sys._getframe(1)))

    def user(self, expr: Any = None) -> Any:
        """Like `system`, for the user's turn."""
        return self._turn("user", expr, self._site(sys._getframe(1)))

    def assistant(self, expr: Any = None) -> Any:
        """Like `system`, for the assistant's turn."""
        return self._turn("assistant", expr, self._site(sys._getframe(1)))

    def _turn(self, role: str, expr: Any, site: CallSite) -> Any:
        if expr is None:
            return OpenTurn(self._cursor, role, site)
        self._say(WholeTurn(role, (expr,)), site)
        return Chain(())  # so that `s += s.user("x")`, which tutorials show, appends the turn once

    def var_scope(self, name: str) -> NamedSpan:
        """`with s.var_scope("story"): ...`: the name stands for the text appended inside."""
        return NamedSpan(self._cursor, name)

    # reading -----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.inner

    def get_var(self, name: str) -> Any:
        """Its value; waits for it, and raises why it failed."""
        return self.inner[name]

    def set_var(self, name: str, value: Any) -> None:
        """Give a name a value by hand."""
        self._cursor.rebind(name, ManualBinding(value, name))

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Counts, finish reason and log-probabilities of a call, under SGLang's keys."""
        found: Meta = self.inner.meta(name)
        return meta_info(found)

    def text(self) -> str:
        """All text so far; waits for it."""
        return self.inner.text

    def messages(self) -> list[dict[str, str]]:
        """The turns so far, without the blanks that their text begins with."""
        return [{**message, "content": message["content"].lstrip()} for message in self.inner.messages()]

    def sync(self) -> None:
        """Wait for all text so far. Raises nothing: `error()` tells."""
        self.error()

    def error(self) -> BaseException | None:
        """Why the state failed, or None; waits for its end."""
        if self._result is not None or self.stream is not None or self.finish is not None:
            return self._ended().error
        try:
            _ = self.inner.text
        except Exception as error:  # noqa: BLE001  whatever failed is what was asked for
            return error
        return None

    @property
    def ret_value(self) -> Any:
        """What the program returned; waits for its end."""
        return self._ended().value

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it is written (`run(stream=True)`), or at once."""
        if self.stream is None or self.stream.spent:
            yield self.text() if var_name is None else str(self.get_var(var_name))
            return
        yield from self.stream if var_name is None else self.stream.of(var_name)

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Like `text_iter`; with `return_meta_data` (of a variable) pairs of text and meta info: of each piece what is
        known by then, and behind a call's last piece an empty one with all.
        """
        if return_meta_data and var_name is None:
            raise SpecError(
                "return_meta_data needs a variable", hint="text_async_iter('answer', return_meta_data=True)"
            )
        if self.stream is None or self.stream.spent:
            text = self.text() if var_name is None else str(self.get_var(var_name))
            yield (text, self.get_meta_info(str(var_name))) if return_meta_data else text
            return
        pieces = self.stream if var_name is None else self.stream.of(var_name)
        if not return_meta_data:
            async for chunk in pieces:
                yield chunk
            return
        written: Chunk | None = None
        pieces_of_call = 0
        async for chunk in pieces:
            if written is not None and written.node is not chunk.node:
                yield "", self._meta_of(written)
                pieces_of_call = 0
            written, pieces_of_call = chunk, pieces_of_call + 1
            yield chunk, partial_info(chunk.node.id, pieces_of_call)
        if written is not None:
            yield "", self._meta_of(written)

    def _meta_of(self, chunk: Chunk) -> dict[str, Any]:
        meta = self._cursor.recorder.outcome(chunk.node.id).meta
        return {"id": chunk.node.id, **({} if meta is None else meta_info(meta))}

    def _ended(self) -> Result[Any]:
        with self._ending:
            if self._result is None and self.finish is not None:
                self._result = self.finish()
        if self._result is None:
            running = None if self.stream is None else self.stream.running
            if running is None:
                raise ProgramError("this state is not that of a whole run", hint="ask the state that run() returned")
            self._result = running.result(raising=False)
        return self._result

    # forking -----------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> ProgramStateGroup:
        """`size` branches. `position_ids_offset` has no effect, as in SGLang."""
        return ProgramStateGroup(fork(self._cursor, size, self._site(sys._getframe(1))))

    def copy(self, position_ids_offset: Any = None) -> AbstractContextManager[ProgramState]:
        """`with s.copy() as c: ...`: a branch whose variables are this state's after the block, as plain values."""
        return self._copied(self._site(sys._getframe(1)))

    @contextmanager
    def _copied(self, site: CallSite) -> Iterator[ProgramState]:
        (branch,) = fork(self._cursor, 1, site).branches
        yield ProgramState(State(branch, 0))
        for name, bound in branch.names.own.items():
            self._cursor.rebind(name, bound)
        branch.line.closed = site.origin

    def __repr__(self) -> str:
        try:
            return f"ProgramState({self.text()})"
        except Exception as error:  # noqa: BLE001  a repr raises nothing; what failed is part of it
            return f"ProgramState(<failed: {type(error).__name__}: {str(error).splitlines()[0]}>)"


class ProgramStateGroup:
    """The branches of a fork."""

    def __init__(self, forked: Forked) -> None:
        self._fork = forked
        self.states = [ProgramState(State(branch, index)) for index, branch in enumerate(forked.branches)]

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """What `group[i] += x` ends with."""
        if state is not self.states[index]:
            raise ProgramError(f"branch {index} cannot be replaced", hint="group[i] += x", origin=caller_origin())

    def __iadd__(self, other: Any) -> ProgramStateGroup:
        """Append to every branch: text, a call, a list with one item per branch, or a function of the index."""
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                what = f"{len(other)} items for {len(self)} branches"
                raise ProgramError(what, hint="give one item per branch", origin=caller_origin())
            items = list(other)
            other = lambda index: items[index]  # noqa: E731  a function of the index, like any other
        self._fork.say(other, self._fork.parent.recorder.sites.at(sys._getframe(1)))
        return self

    def join(self, mode: Gather = "gather_variable") -> None:
        """Bring the branches together: each variable they bound becomes a list in the parent, one item per branch
        (MISSING where a branch did not bind it), or their text is appended to the parent.

        Raises:
            JoinError: when the list is read and a branch failed; it holds every branch's value or error.
        """
        site = self._fork.parent.recorder.sites.at(sys._getframe(1))
        if mode not in ("gather_variable", "concate_and_append"):
            raise SpecError(
                f"mode={mode!r} is unknown", hint="gather_variable or concate_and_append", origin=site.origin
            )
        ours: JoinMode = "all" if mode == "gather_variable" else "concat"
        self._fork.join(None, JoinRequest(mode=ours, nested=True), site, only_new=True)

    def __enter__(self) -> ProgramStateGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.join()


# --- programs ---------------------------------------------------------------------------------------------------------


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
            _adapted(func), sites=CallSites(func.__name__, func.__code__), parameters=self.arg_names
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
            session = session_of(self._program, *call)
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
                [partial(session_of, self._program, *call) for call in calls],
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
        opened = partial(session_of, self._program, *call)
        stream: Stream[Any] = Stream(opened, asynchronous=False, name=self.__name__)
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
