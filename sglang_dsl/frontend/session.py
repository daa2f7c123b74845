"""One run of one program, from its options to its Result.

Options come from the run itself and from its surroundings: `with use(...)` reaches all that the library starts, and what
copies the context.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from functools import partial
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from ..errors import CancelledError, Origin, ProgramError, SpecError
from ..ir.execution import (
    Executor,
    Outcome,
    Run,
    RunSpec,
    RunSummary,
    Usage,
    check_models_allowed,
    on_loop,
    resolve,
)
from ..ir.graph import Graph
from ..ir.nodes import Constant, Join, Return
from ..ir.specs import SAMPLING_NAMES, Backend, RunOptions, SamplingOptions, spelled
from .bindings import Bindings
from .call_sites import CallSites, caller_origin
from .cursor import Cursor, Line
from .data import MENTIONS, mentions_in, replaced, resolved_mention
from .expressions import Expression, Handle
from .greenlets import on_some_stack, wait
from .recorder import SCALARS, LiveRecorder
from .state import State
from .statement import avalue_of, value_of

if TYPE_CHECKING:
    from ..ir.draw import Drawing, Format
    from ..ir.record import RunRecord

R = TypeVar("R")
RUNS_ON_A_STACK = 32  # of `async def` programs that await runs in each other: then a task begins a stack of its own
_runs_around: ContextVar[int] = ContextVar("runs_around", default=0)


class Session(Generic[R]):
    """Runs a body once. `state` and `run` can be read from any thread; the body belongs to one.

    keep_failures: a failure that the body has seen, and went on, is the run's all the same.
    """

    __slots__ = ("_around", "_body", "_cancelled", "_keep_failures", "_origin", "cursor", "executor", "name",
                 "raised_by_body", "recorder", "run", "state")  # fmt: skip

    def __init__(
        self,
        body: Callable[[State], Any],
        spec: RunSpec,
        sites: CallSites,
        origin: Origin,
        *,
        asynchronous: bool = False,
        keep_failures: bool = False,
    ) -> None:
        self.name = spec.program
        check_models_allowed(f"ran the program {self.name!r}")
        options = spec.options
        self._around = _runs_around.get()
        if self._around >= options.max_depth:
            raise ProgramError(
                f"{self.name} is {self._around + 1} runs deep in each other, and a run allows {options.max_depth}",
                hint="end the recursion sooner, or give RunOptions(max_depth=...)",
                origin=caller_origin(),
            )
        self._body = body
        self._origin = origin
        self._cancelled = ""
        self._keep_failures = keep_failures
        self.raised_by_body = False
        self.executor: Executor = resolve(options.backend)
        self.run: Run = self.executor.open(spec)
        self.recorder = LiveRecorder(
            self.run,
            Graph(name=self.name),
            sites,
            asynchronous=asynchronous,
            max_depth=options.max_depth,
            sampling=options.sampling,
        )
        self.cursor = Cursor(self.recorder, Line(), Bindings())
        self.state = State(self.cursor)

    def execute(self) -> Result[R]:
        """Run the body on this thread. Raises nothing: what ended the run, also a KeyboardInterrupt, is in `Result.error`."""
        return self.begin()()

    def begin(self) -> Callable[[], Result[R]]:
        """Run the body on this thread, and leave what it has not waited for under way. What is returned waits for its end."""
        around = _runs_around.set(self._around + 1)
        try:
            value = on_some_stack(partial(self._body, self.state))
            self._note_returned(value)
            sealed = self.run.seal()
        except BaseException as raised:  # noqa: BLE001  whatever ended the body ends the run; the caller raises it
            failed = self._failed(raised)
            self.raised_by_body = True
            return lambda: failed
        finally:
            _runs_around.reset(around)

        def finish() -> Result[R]:
            try:
                found = value if type(value) in SCALARS else replaced(value, MENTIONS, self._read)
                summary = wait(sealed)
                error = self._failure_at_end() if summary.error is not None or self._cancelled else None
            except BaseException as raised:  # noqa: BLE001  as above
                return self._failed(raised)
            return self._result(found, summary, error)

        return finish

    async def aexecute(self) -> Result[R]:
        """The same for an `async def` body, on this event loop. A cancelled task cancels the run."""
        import asyncio

        self.run.await_on(asyncio.get_running_loop())
        around = _runs_around.set(self._around + 1)
        try:
            body = self._body(self.state)
            fresh = self._around and self._around % RUNS_ON_A_STACK == 0
            value = await (asyncio.create_task(body) if fresh else body)
            self._note_returned(value)
            found = {id(m): await avalue_of(m, self.cursor) for m in mentions_in(value, MENTIONS, set())}
            value = replaced(value, MENTIONS, lambda mention: found[id(mention)])
            summary = await on_loop(self.run.seal())
            error = self._failure_at_end() if summary.error is not None or self._cancelled else None
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

    def execute_async(self) -> Result[R]:
        """`aexecute` for a synchronous caller, also where this thread's event loop is running already."""
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            here = True
        else:
            here = False
        try:
            return asyncio.run(self.aexecute()) if here else _on_a_thread(lambda: asyncio.run(self.aexecute()))
        except KeyboardInterrupt as interrupt:
            return self.interrupted(interrupt)

    def cancel(self, reason: str) -> None:
        """Stop everything that has not finished."""
        self._cancelled = reason
        self.run.cancel(None, reason)

    def interrupted(self, interrupt: BaseException) -> Result[R]:
        """The end of an `async def` body whose task or event loop was ended from outside (Ctrl-C, a cancellation): what had
        finished by then is kept.
        """
        return self._failed(interrupt)

    def _failed(self, raised: BaseException) -> Result[R]:
        return self._result(None, wait(self._stopped(raised)), raised, raised_by_body=True)

    def _stopped(self, raised: BaseException) -> Any:
        self.run.cancel(None, f"the program ended with {type(raised).__name__}")
        return self.run.seal()

    def _note_returned(self, value: Any) -> None:
        """Add the Return node. A value that is no data (some Python object) has none: the graph does not know it.

        Raises:
            ProgramError: what was returned is mistaken for a value.
        """
        if type(value) not in SCALARS:
            self._check_returned(value)
        line = self.cursor.line
        if value is None or line.cancelled:
            return
        try:
            expression = (
                Constant(value)
                if type(value) in SCALARS
                else self.recorder.expression(value, self.cursor.find, self._origin)
            )
        except ProgramError:
            return
        node = Return(id="return", context=line.tip, branch=line.branch, origin=self._origin, value=expression)
        try:
            self.recorder.append([node])
        except Exception as error:
            # a failure that the program has seen does not keep it from returning something
            if not self.recorder.has_shown(error):
                raise

    def _check_returned(self, value: Any) -> None:
        if isinstance(value, CoroutineType):
            value.close()
            raise ProgramError(
                f"{self.name} returned a coroutine that nobody awaits",
                hint="s[...] instead of s.get(...), or `async def` and `await`",
                origin=self._origin,
            )
        for mention in mentions_in(value, (Expression,), set()):
            if not isinstance(mention, MENTIONS) or (isinstance(mention, Handle) and mention not in self.state):
                raise ProgramError(
                    f"{self.name} returned {mention!r} itself, not its value: it is not appended to this state",
                    hint="s += it, and return s[...]",
                    origin=self._origin,
                )
            resolved_mention(mention, self.cursor.find, self._origin)

    def _read(self, mention: Any) -> Any:
        """The value of what a returned value mentions; waits for it."""
        return value_of(mention, self.cursor)

    def _failure_at_end(self) -> BaseException | None:
        """Why the run failed, if it did: the first failure that no read or append has raised in the program, and that no join has
        taken upon itself. One is never passed over in silence.
        """
        if self._cancelled:
            return CancelledError(f"the run was cancelled: {self._cancelled}")
        graph = self.recorder.graph
        joined = {node.fork for node in graph if isinstance(node, Join)}
        absorbed: set[str] = set()
        for node in graph:
            if node.context in absorbed or (node.branch is not None and node.context in joined):
                absorbed.add(node.id)
                continue
            error = self.run.value(node.id).exception()
            if error is None or isinstance(error, CancelledError):
                continue
            if self._keep_failures or not self.recorder.has_shown(error):
                return error
        return None

    def _result(
        self, value: Any, summary: RunSummary, error: BaseException | None, *, raised_by_body: bool = False
    ) -> Result[R]:
        result: Result[R] = Result(self, value, summary, error, raised_by_body=raised_by_body)
        # an error that ends a run names its Result; a `result` that the user's own class has is left alone
        if error is not None and isinstance(getattr(error, "result", None), (Result, NoneType)):
            with suppress(AttributeError, TypeError):  # a class of the user's may not let itself be written to
                error.result = result  # type: ignore[attr-defined]
        return result


def _on_a_thread(work: Callable[[], R]) -> R:
    found: list[R] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: found.append(context.run(work)), daemon=True)
    thread.start()
    thread.join()
    return found[0]


class Result(Generic[R]):
    """The end of one run.

    state: the final state, for reading. graph: everything that was appended. error: why the run failed, or None; then
    `value` raises it, and the error's own `result` is this Result. usage, seed: from the runtime. first_failure: why the first
    node failed, also where the program dealt with it.
    raised_by_body: whether the body itself raised `error`, or it was a failure that the body never looked at.
    """

    __slots__ = (
        "_cursor",
        "_meter",
        "_program",
        "_run",
        "_value",
        "error",
        "first_failure",
        "graph",
        "raised_by_body",
        "seed",
        "state",
        "usage",
    )

    def __init__(
        self,
        session: Session[R],
        value: R | None,
        summary: RunSummary,
        error: BaseException | None,
        *,
        raised_by_body: bool = False,
    ) -> None:
        self._value = value
        self._cursor = session.cursor
        self._run = session.run
        self._meter = session.executor.meter
        self._program = session.name
        self.state = session.state
        self.graph = session.recorder.graph.freeze()
        self.usage: Usage = summary.usage
        self.seed = summary.seed
        self.first_failure = summary.error
        self.error = error
        self.raised_by_body = raised_by_body

    @property
    def value(self) -> R:
        """What the program returned, lazy values resolved. Raises the run's error if it failed."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    @property
    def text(self) -> str:
        """All text of the final state, turn markers included."""
        return self.state.text

    @property
    def finished(self) -> dict[str, Any]:
        """Names of the final state whose values exist, with their values; for looking at a failed or stopped run."""
        return self._cursor.finished()

    @property
    def record(self) -> RunRecord:
        """What the run leaves behind: `ir.record.save_record` stores it, a replay backend runs it again."""
        return self._run.record()

    @property
    def errors(self) -> dict[str, BaseException]:
        """Why nodes have no value, by node id: what failed, what depended on it, and what was cancelled."""
        return dict(self.record.errors)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What each finished node resolved to, by node id."""
        recorder = self._cursor.recorder
        return {node.id: recorder.outcome(node.id) for node in self.graph if recorder.is_finished(node.id)}

    def draw(self, format: Format = "html") -> Drawing:  # noqa: A002  the word that `ir.draw.draw` uses
        """A picture of the graph, with what the run gave and what went wrong in it; the HTML page has the prompts as the
        model got them.
        """
        from ..ir.draw import draw

        record = self.record
        meter = self._meter() if format == "html" else None
        return draw(self.graph, format, outcomes=record.outcomes, errors=record.errors, meter=meter)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: the page of the run."""
        return {**self.draw("html")._repr_mimebundle_(), "text/plain": repr(self)}

    def __copy__(self) -> Result[R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Result[R]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ResultElsewhere, (repr(self), self.usage, self.seed)

    def __repr__(self) -> str:
        ended = f"value={spelled(self._value)}" if self.error is None else f"error={self.error!r}"
        return f"<Result {self._program} {ended}>"


@dataclass(frozen=True, slots=True)
class ResultElsewhere:
    """What a Result becomes in another process: a run stays where it was made. Its record can go anywhere
    (`ir.record.save_record`).
    """

    shown: str
    usage: Usage
    seed: int

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self.shown} was made in another process, and has no {name!r} here; "
            "save_record(result.record, path) there stores all of it"
        )

    def __repr__(self) -> str:
        return f"<in another process: {self.shown}>"


def attach(result: Result[Any], error: BaseException) -> None:
    """Let an error that ends a run name the Result of that run. A `result` that the user's own class has is left alone."""
    if isinstance(getattr(error, "result", None), (Result, NoneType)):
        with suppress(AttributeError, TypeError):  # a class of the user's may not let itself be written to
            error.result = result  # type: ignore[attr-defined]


# --- options of the surroundings --------------------------------------------------------------------------------------


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
