"""One run of one program, from opening to the Result.

Run options of the surroundings: `with use(...)` reaches all that the library starts, and what copies the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from functools import partial
from types import CoroutineType
from typing import Any, Generic, TypeVar, Unpack

from ..errors import CancelledError, Origin, ProgramError, SpecError
from ..ir.execution import Executor, Run, RunSpec, RunSummary, check_models_allowed, on_loop, resolve
from ..ir.graph import Graph
from ..ir.nodes import Join, Return
from ..ir.specs import SAMPLING_NAMES, Backend, RunOptions, SamplingOptions
from .bindings import Bindings
from .call_sites import Sites, caller_origin
from .cursor import Cursor, Line
from .data import MENTIONS, avalue_of, mentions_in, replaced, resolved_mention, value_of
from .expressions import Expression, Handle
from .greenlets import on_some_stack, wait
from .recorder import LiveRecorder
from .result import Result, attach
from .state import State

R = TypeVar("R")
RUNS_ON_A_STACK = 32  # of `async def` programs that await runs in each other: then a task begins a stack of its own
_runs_around: ContextVar[int] = ContextVar("runs_around", default=0)


class Session(Generic[R]):
    """Runs a body once. `state` and `run` can be read from any thread; the body belongs to one.

    keep_failures: a failure that the body has seen, and went on, is the run's all the same.
    """

    __slots__ = (
        "_around",
        "_body",
        "_cancelled",
        "_cursor",
        "_executor",
        "_keep_failures",
        "_origin",
        "_spec",
        "raised_by_body",
        "recorder",
        "run",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        body: Callable[[State], Any],
        spec: RunSpec,
        sites: Sites,
        origin: Origin,
        *,
        asynchronous: bool = False,
        keep_failures: bool = False,
    ) -> None:
        check_models_allowed(f"ran the program {spec.program!r}")
        self._around = _runs_around.get()
        if self._around >= spec.options.max_depth:
            raise ProgramError(
                f"{spec.program} is {self._around + 1} runs deep in each other, and a run allows {spec.options.max_depth}",
                hint="end the recursion sooner, or give RunOptions(max_depth=...)",
                origin=caller_origin(),
            )
        self._body = body
        self._spec = spec
        self._origin = origin
        self._cancelled = ""
        self._keep_failures = keep_failures
        self.raised_by_body = False
        self._executor: Executor = resolve(spec.options.backend)
        self.run: Run = self._executor.open(spec)
        self.recorder = LiveRecorder(
            self.run,
            Graph(name=spec.program),
            sites,
            asynchronous=asynchronous,
            max_depth=spec.options.max_depth,
            sampling=spec.options.sampling,
        )
        self._cursor = Cursor(self.recorder, Line(), Bindings())
        self.state = State(self._cursor)

    @property
    def name(self) -> str:
        """The program's."""
        return self._spec.program

    def execute(self) -> Result[R]:
        """Run the body on this thread. Raises nothing: what ended the run, also a KeyboardInterrupt, is in `Result.error`."""
        return self.begin()()

    def begin(self) -> Callable[[], Result[R]]:
        """Run the body on this thread, and leave what it has not waited for under way. What is returned waits for its end."""
        around = _runs_around.set(self._around + 1)
        try:
            value = on_some_stack(partial(self._body, self.state))
            self._check_returned(value)
            self._note_return(value)
            sealed = self.run.seal()
        except BaseException as raised:  # noqa: BLE001  whatever ended the body ends the run; the caller raises it
            failed = self._failed(raised)
            self.raised_by_body = True
            return lambda: failed
        finally:
            _runs_around.reset(around)

        def finish() -> Result[R]:
            try:
                found = replaced(value, MENTIONS, self._read)
                summary = wait(sealed)
                error = self._failure_at_end(summary)
            except BaseException as raised:  # noqa: BLE001  as above
                return self._failed(raised)
            return self._result(found, summary, error)

        return finish

    def _failed(self, raised: BaseException) -> Result[R]:
        return self._result(None, wait(self._stopped(raised)), raised, raised_by_body=True)

    async def aexecute(self) -> Result[R]:
        """The same for an `async def` body, on this event loop. A cancelled task cancels the run."""
        import asyncio

        self.run.await_on(asyncio.get_running_loop())
        around = _runs_around.set(self._around + 1)
        try:
            body = self._body(self.state)
            fresh = self._around and self._around % RUNS_ON_A_STACK == 0
            value = await (asyncio.create_task(body) if fresh else body)
            self._check_returned(value)
            self._note_return(value)
            value = await self._aread(value)
            summary = await on_loop(self.run.seal())
            error = self._failure_at_end(summary)
        except BaseException as raised:
            task = asyncio.current_task()
            if isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling():
                self.cancel("the task was cancelled")
                self.run.seal()
                raise
            summary = await on_loop(self._stopped(raised))
            return self._result(None, summary, raised, raised_by_body=True)
        finally:
            _runs_around.reset(around)
        return self._result(value, summary, error)

    def cancel(self, reason: str) -> None:
        """Stop everything that has not finished."""
        self._cancelled = reason
        self.run.cancel(None, reason)

    def interrupted(self, interrupt: BaseException) -> Result[R]:
        """The end of an `async def` body whose task or event loop was ended from outside (Ctrl-C, a cancellation): what had
        finished by then is kept.
        """
        summary = wait(self._stopped(interrupt))
        return self._result(None, summary, interrupt, raised_by_body=True)

    def _stopped(self, raised: BaseException) -> Any:
        self.run.cancel(None, f"the program ended with {type(raised).__name__}")
        return self.run.seal()

    def _check_returned(self, value: Any) -> None:
        """Raise ProgramError for what is mistaken for a value."""
        if isinstance(value, CoroutineType):
            value.close()
            raise ProgramError(
                f"{self._spec.program} returned a coroutine that nobody awaits",
                hint="s[...] instead of s.get(...), or `async def` and `await`",
                origin=self._origin,
            )
        for mention in mentions_in(value, (Expression,), set()):
            if not isinstance(mention, MENTIONS) or (isinstance(mention, Handle) and mention not in self.state):
                raise ProgramError(
                    f"{self._spec.program} returned {mention!r} itself, not its value: it is not appended to this state",
                    hint="s += it, and return s[...]",
                    origin=self._origin,
                )
            resolved_mention(mention, self._cursor.find, self._origin)

    def _read(self, mention: Any) -> Any:
        """The value of what a returned value mentions; waits for it."""
        return value_of(mention, self._cursor)

    async def _aread(self, value: Any) -> Any:
        """A returned value with all it mentions read, without blocking the loop."""
        found = {id(m): await avalue_of(m, self._cursor) for m in mentions_in(value, MENTIONS, set())}
        return replaced(value, MENTIONS, lambda mention: found[id(mention)])

    def _note_return(self, value: Any) -> None:
        """Add the Return node. A value that is no data (some Python object) has none: the graph does not know it."""
        line = self._cursor.line
        if value is None or line.cancelled:
            return
        try:
            expression = self.recorder.expression(value, self._cursor.find, self._origin)
        except ProgramError:
            return
        node = Return(id="return", context=line.tip, branch=line.branch, origin=self._origin, value=expression)
        try:
            self.recorder.append([node])
        except Exception as error:
            # a failure that the program has seen does not keep it from returning something
            if not self.recorder.has_shown(error):
                raise

    def _failure_at_end(self, summary: RunSummary) -> BaseException | None:
        """A failure that the program has not seen: one is never passed over in silence."""
        if self._cancelled:
            return CancelledError(f"the run was cancelled: {self._cancelled}")
        if summary.error is None:
            return None
        return unseen_failure(self.recorder, also_seen=self._keep_failures)

    def _result(
        self, value: Any, summary: RunSummary, error: BaseException | None, *, raised_by_body: bool = False
    ) -> Result[R]:
        self.recorder.graph.freeze()
        result: Result[R] = Result(
            value,
            state=self.state,
            cursor=self._cursor,
            graph=self.recorder.graph,
            spec=self._spec,
            run=self.run,
            meter=self._executor.meter,
            summary=summary,
            error=error,
            raised_by_body=raised_by_body,
        )
        if error is not None:
            attach(result, error)
        return result


def unseen_failure(recorder: LiveRecorder, *, also_seen: bool = False) -> BaseException | None:
    """The first failure that no read or append has raised in the program, and that no join has taken upon itself.

    also_seen: the first one, whoever has seen it.
    """
    graph = recorder.graph
    joined = {node.fork for node in graph if isinstance(node, Join)}
    absorbed: set[str] = set()
    for node in graph:
        if node.context in absorbed or (node.branch is not None and node.context in joined):
            absorbed.add(node.id)
            continue
        error = recorder.run.value(node.id).exception()
        if error is None or isinstance(error, CancelledError):
            continue
        if also_seen or not recorder.has_shown(error):
            return error
    return None


_DEFAULT = RunOptions()
_SAMPLING = frozenset(SAMPLING_NAMES) - {f.name for f in dataclass_fields(RunOptions)}
_current: ContextVar[RunOptions] = ContextVar("sglang_dsl.options", default=_DEFAULT)


class UseOptions(SamplingOptions, total=False):
    """What `use` takes by name: the fields of RunOptions, and those of SamplingSpec."""

    backend: str | Backend | None
    models: Mapping[str, str | Backend]
    namespace: str
    deadline_s: float | None
    priority: int
    token_budget: int | None
    max_depth: int
    sampling: Mapping[str, Any]


@contextmanager
def use(options: RunOptions | None = None, **fields: Unpack[UseOptions]) -> Iterator[RunOptions]:
    """Options for every run inside the block: `with use(backend="mock", seed=7): ...`.

    Give a RunOptions or its fields by name, not both. What a run states itself wins; inner blocks win over outer ones. The
    options of `SamplingSpec` may be given by name too, for every `gen` that leaves them out: `with use(temperature=0): ...`.

    They are a context variable. They reach branches, tools, validators, `start`, `stream`, batches and asyncio tasks; a thread
    that you start yourself begins without them, unless it runs in a copy of the context
    (`executor.submit(contextvars.copy_context().run, function)`). `set_default_backend` reaches all threads.
    """
    if options is not None and fields:
        raise SpecError("use() got a RunOptions and fields by name", hint="put the fields into the RunOptions")
    named: dict[str, Any] = {**fields}
    for name in named:
        if name not in UseOptions.__annotations__:
            near = get_close_matches(name, UseOptions.__annotations__, 1)
            raise SpecError(
                f"use() has no option {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else "it takes the fields of RunOptions and of SamplingSpec",
            )
    sampling = {name: named.pop(name) for name in list(named) if name in _SAMPLING}
    if sampling:
        named["sampling"] = {**named.get("sampling", {}), **sampling}
    token = _current.set(settled(options if options is not None else RunOptions(**named)))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def settled(options: RunOptions | None) -> RunOptions:
    """`options` over those of the surroundings."""
    outer = _current.get()
    if options is None:
        return outer
    if not isinstance(options, RunOptions):
        raise SpecError(f"options={options!r} is a {type(options).__name__}", hint="give options=RunOptions(...)")
    return options if outer is _DEFAULT else options.over(outer)
