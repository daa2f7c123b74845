"""The seam between how programs are said (frontend) and who executes them (runtime).

Frontend and runtime never import each other; both import this. An `Executor` opens `Run`s; a Run takes nodes while the
program's body appends them, executes what is ready, and resolves one future per node.

    frontend                         ir/execution                       runtime
    State += ...   -- nodes -->      Run.extend(nodes)      -->         interpret, plan, schedule, engine
    s[x] waits     <-- Outcome --    Run.value(node_id)     <--         sampled, decoded, validated
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from ..errors import BackendNotFoundError
from .graph import Graph, Node
from .outcome import MISSING as MISSING
from .outcome import ChoiceScore as ChoiceScore
from .outcome import FinishReason as FinishReason
from .outcome import Meta as Meta
from .outcome import Outcome as Outcome
from .outcome import TokenScore as TokenScore
from .outcome import Usage as Usage
from .specs import Backend, ConstraintSpec, RunOptions, shown

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future
    from importlib.metadata import EntryPoint

    from .record import RunRecord

T = TypeVar("T")
ENTRY_POINT_GROUP = "sglang_dsl.backends"
BACKEND_VARIABLE = "SGLANG_DSL_BACKEND"
DEFAULT_BACKEND = "local"

EventKind: TypeAlias = Literal["started", "text", "finished", "failed", "cancelled", "run_finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a run. `text`: the newly released, UTF-8-complete text of a Gen (kind "text")."""

    kind: EventKind
    node_id: str = ""
    text: str = ""
    outcome: Outcome | None = None
    error: BaseException | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """How a run ended: its usage, the seed it used or drew, the first failure if any, and the text at the end of its own path
    (not of its branches), turn markers included.
    """

    usage: Usage
    seed: int
    error: BaseException | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Which of how many runs that were asked for together."""

    batch_id: str
    index: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What an Executor needs to open a run. `registry`: Python callables by key (tools, join keys, validators)."""

    program: str = ""
    options: RunOptions = field(default_factory=RunOptions)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    registry: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    batch: BatchItem | None = None


class Run(Protocol):
    """One execution of one program. Thread-safe: the body's thread extends, any thread reads."""

    @property
    def seed(self) -> int:
        """The run's seed, given or drawn."""

    def extend(self, nodes: Sequence[Node]) -> None:
        """Take appended nodes. Never waits for a model.

        Raises:
            DslError: what the border can see: the first cause if the context has failed already, a prompt that no
                longer fits (`ContextLengthError`), a role the template refuses, an unknown model alias or tool,
                a constraint that is malformed, a run that was cancelled or sealed.
        """

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """Add a Python callable (tool, join key, validator) that nodes appended later name by `key`."""

    def await_on(self, loop: AbstractEventLoop) -> None:
        """The program is a coroutine of this event loop: what registered callables give to be awaited is awaited there. Else
        the run has a loop of its own for all of it.
        """

    def value(self, node_id: str) -> Future[Outcome]:
        """The node's future (the same object each time). Cancelling it does not cancel the node."""

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        """Cancel these nodes and all that lies below them in context; None: the whole run. Finished results stay."""

    def seal(self) -> Future[RunSummary]:
        """Say that no more nodes come. The future resolves when every live node has ended (never raises a node's error)."""

    def record(self) -> RunRecord:
        """What the run has left behind so far: all of it, once the future of `seal` has resolved."""

    def events(self) -> Iterator[Event]:
        """All events from the beginning, then live ones, ending after "run_finished". Any number of readers."""

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        """Call `listener` for each event from now on, on the runtime's thread: it must return fast and not raise.
        replay: first, on this thread, for each that came so far. Returns the function that ends the subscription.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of rendered prompt between two seams and the node it comes from. `token_ids` are exact where the text is
    known; a value that does not exist yet is shown as its reference and counted by its bound in `max_tokens`.
    """

    node_id: str
    text: str
    token_ids: tuple[int, ...] = ()
    max_tokens: int = 0
    control: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintReport:
    """What is known about a constraint before a run: tokens forced on every path, and weaknesses found."""

    forced_tokens: int = 0
    findings: tuple[str, ...] = ()


class Meter(Protocol):
    """Facts of a model that explain, previews and length checks need; no forward pass is made."""

    model: str
    context_tokens: int
    kv_bytes_per_token: int

    def render(self, path: Sequence[Node], values: Mapping[str, str]) -> tuple[Segment, ...]:
        """The prompt along a context path, with the texts of nodes that are known (`values`: node id -> text)."""

    def count(self, text: str) -> int:
        """Tokens of a plain text on its own."""

    def seam(self, before: str, after: str) -> str:
        """How the tokens of two texts encoded apart differ from those of one encoding, in words; "" if they do not."""

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Forced tokens and findings. Raises ConstraintError where the constraint cannot be used at all."""


@runtime_checkable
class Executor(Protocol):
    """A backend: something that can execute graphs."""

    name: str

    def open(self, spec: RunSpec) -> Run:
        """Begin a run."""

    def meter(self) -> Meter:
        """Facts of its default model."""

    def close(self) -> None:
        """Release everything. Idempotent; open runs are cancelled."""


ExecutorFactory: TypeAlias = Callable[[str], Executor]

_default: str | Backend | None = None  # of the process: what `set_default_backend` set; guarded by _opened_lock
_opened: dict[str, _Opening] = {}  # executors made from a name live as long as the process: a model is loaded once
_opened_lock = threading.Lock()


class _Opening:
    """The one opening of a name, which all who ask for it at once share: its Executor, or why there is none."""

    def __init__(self) -> None:
        self.opener = threading.get_ident()
        self.ended = threading.Event()
        self.executor: Executor | None = None
        self.error: Exception | None = None


class DefaultBackend:
    """What `set_default_backend` gives back: leaving its `with` block restores the default that was there before."""

    def __init__(self, backend: str | Backend | None, previous: str | Backend | None) -> None:
        self.backend = backend
        self.previous = previous

    def __enter__(self) -> str | Backend | None:
        return self.backend

    def __exit__(self, *exception: object) -> None:
        _swap_default(self.previous)


def set_default_backend(backend: str | Backend | None) -> DefaultBackend:
    """Set the backend of every run of this process that names none, whichever thread begins it; None takes it back.

    A run takes the backend of its own `options`, else of the innermost `with use(backend=...)`, else this one, else the
    `SGLANG_DSL_BACKEND` environment variable, else `"local"`. Runs that have begun keep theirs. A name is opened when the
    first run needs it; an Executor stays yours to close. It holds until it is set again; as `with
    set_default_backend(...):` it holds for the block, for all threads.

    Raises:
        BackendNotFoundError: a name that no installed backend has, or an object that is none.
    """
    if isinstance(backend, str):
        _entry_point(backend)
    elif backend is not None:
        resolve(backend)
    return DefaultBackend(backend, _swap_default(backend))


def _swap_default(backend: str | Backend | None) -> str | Backend | None:
    """Set the default; returns what it was."""
    global _default
    with _opened_lock:
        previous, _default = _default, backend
    return previous


def resolve(backend: str | Backend | None) -> Executor:
    """The Executor for a name of the form `kind` or `kind:argument`, found through the `sglang_dsl.backends` entry points;
    for None that of the process's default (see `set_default_backend`).

    The factory gets the argument ("" if there is none). The same name gives the same Executor for the process's life,
    until `close_all()`. Whoever asks while it is being opened waits for that opening; one that fails is not remembered.

    Raises:
        BackendNotFoundError: no entry point of that kind (the message lists those installed), or an object that is none.
        DslError: it could not be opened.
    """
    if backend is None or (isinstance(backend, str) and not backend):
        backend = _default
    if backend is not None and not isinstance(backend, str):
        if not isinstance(backend, Executor):
            raise BackendNotFoundError(
                f"{shown(backend)} is not a backend: it has no open(), meter() and close()",
                hint="pass the name of a backend, or an Executor such as testing.mock(...)",
            )
        return backend
    name = backend or os.environ.get(BACKEND_VARIABLE) or DEFAULT_BACKEND
    while True:
        with _opened_lock:
            opening = _opened.get(name)
            mine = opening is None
            if opening is None:
                opening = _opened[name] = _Opening()
        if mine:
            return _open(name, opening)
        if not opening.ended.is_set() and opening.opener == threading.get_ident():
            raise BackendNotFoundError(
                f"opening the backend {name!r} asks for itself", hint="open it without its own name"
            )
        opening.ended.wait()
        if opening.executor is not None:
            return opening.executor
        if opening.error is not None:
            raise opening.error


def _open(name: str, opening: _Opening) -> Executor:
    """Open a name for everyone who waits for it. An interrupted opening leaves it to the next one who asks."""
    try:
        opening.executor = _factory(name)(name.partition(":")[2])
    except BaseException as error:
        with _opened_lock:
            if _opened.get(name) is opening:
                del _opened[name]
        if isinstance(error, Exception):
            opening.error = error
        raise
    finally:
        opening.ended.set()
    return opening.executor


def _factory(name: str) -> ExecutorFactory:
    factory: ExecutorFactory = _entry_point(name).load()
    return factory


def _entry_point(name: str) -> EntryPoint:
    """Where the factory of a backend is found by its name."""
    kind = name.partition(":")[0]
    from importlib.metadata import entry_points  # costs more to load than all of this package

    found = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
    if kind not in found:
        raise BackendNotFoundError(
            f"no backend is called {kind!r}; installed: {', '.join(sorted(found)) or 'none'}",
            hint="pass backend='local', backend='mock' or an Executor object",
        )
    return found[kind]


def close_all() -> None:
    """Close every Executor that `resolve` made, each once; also done at the interpreter's exit.

    Raises:
        Exception: the first that a `close` raised, once all were closed.
    """
    with _opened_lock:
        openings = list(_opened.values())
        _opened.clear()
    failures: list[Exception] = []
    for opening in openings:
        if opening.opener != threading.get_ident():
            opening.ended.wait()
        try:
            if opening.executor is not None:
                opening.executor.close()
        except Exception as error:  # noqa: BLE001 - the others have to be closed, too
            failures.append(error)
    if failures:
        raise failures[0]


atexit.register(close_all)


def on_loop(future: Future[T]) -> asyncio.Future[T]:
    """The future for the running event loop, as `asyncio.wrap_future`; but if that loop is closed before the end, nobody is
    told: whoever waited is gone. Cancelling it leaves `future` alone.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = loop.create_future()

    def settle() -> None:
        if waiter.done():
            return
        if future.cancelled():
            waiter.cancel()
        elif (error := future.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(future.result())

    def wake(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    future.add_done_callback(wake)
    return waiter


_following = threading.local()  # .refuse: set while a body is followed without a model on this thread


@contextmanager
def no_models(refuse: Callable[[str], Any]) -> Iterator[None]:
    """Inside, on this thread, no model is asked anything: `refuse(what)` is called first, and raises to keep it so."""
    outer = getattr(_following, "refuse", None)
    _following.refuse = refuse
    try:
        yield
    finally:
        _following.refuse = outer


def check_models_allowed(what: str) -> None:
    """Whoever is about to ask a model says `what` it does; inside `no_models` this does not return."""
    refuse = getattr(_following, "refuse", None)
    if refuse is not None:
        refuse(what)


def execute(graph: Graph, executor: Executor, spec: RunSpec | None = None) -> Run:
    """Run a finished graph without its Python source: `extend` of all nodes, then `seal`. `run.seal().result()` waits for the end
    and has the text, `run.value("return")` what the program returns.

    Arguments for Input nodes come from `spec.arguments` by name.
    """
    check_models_allowed(f"executed the graph {graph.name!r}")
    run = executor.open(spec or RunSpec(program=graph.name))
    run.extend(list(graph))
    run.seal()
    return run
