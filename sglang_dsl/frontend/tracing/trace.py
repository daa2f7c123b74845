"""A trace: what all runs of one body share, what abstract values ask, and what a body may not do meanwhile.

`Trace` is the whole: it makes abstract values, and answers what the body asks of them. `BodyRun` is one run of the body along
one path, as the rest of this folder sees it; `path.Path` is one.

A trace runs the body several times, and a run does so once more. So nothing may leave the process meanwhile (`driven`). Python
tells an audit hook of everything that does. The hook stays installed for the process's life (there is no way to remove
one) and does nothing but look at one thread-local, unless this thread is tracing. The same is done to the start of
threads, of which Python tells only in part.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, NoReturn, Protocol, Self, TypeVar

from ...errors import Origin, TraceError
from ...ir.execution import no_models
from ...ir.graph import Graph
from ...ir.nodes import Input, Node, Reference, Switch
from ...ir.semantics import is_among
from ..call_sites import CallSites, user_origin
from ..cursor import Recorder
from .items import Chooser, Decision, Group, made_up_texts, made_up_values, possible_answers
from .shapes import FiniteShape, OpaqueShape, OptionalShape, Shape, Tags, TextShape, without_tags
from .values import Abstract, Domain, Unknown, exact, is_abstract


class BodyRun(Recorder, Protocol):
    """Owner: the run of the body. Decisions are replayed from a script, then made by a chooser."""

    nodes: list[Node]
    decisions: list[Decision]
    questioned: bool

    @property
    def trace(self) -> Trace:
        """What it belongs to."""

    def function(self, key: str) -> Callable[..., Any] | None:
        """A registered callable."""

    def decide(self, on: Reference, groups: Sequence[Group]) -> int:
        """Which of the groups the value of `on` belongs to on this path."""

    def left(self, on: Reference) -> Group:
        """What the value of `on` can still be."""

    def inside(self, script: Sequence[Decision], choose: Chooser, before: Sequence[Node]) -> Self:
        """A walk of its own for a body inside this one."""

    def check_replay(self) -> None:
        """Stop if this run said something else than the one whose decisions it repeats."""

    def guess(self, reason: str, on: Reference, answers: Sequence[Any], question: object) -> Any:
        """One of the answers, in a run that goes on beyond its Breaks; else it ends here."""

    def stop(self, reason: str, on: Reference | None = None, origin: Origin | None = None) -> NoReturn:
        """End with a Break."""


# What is looked up by a hash is looked up by what the value is not: no made-up answer shows what a run may do.
_BLIND = ("hash()", "pickling", "sys.getsizeof()")


class Trace:
    """Follows what a body does with abstract values. Owner: one call of `trace`; `path` is the run that is under way."""

    def __init__(
        self, name: str, sites: CallSites, *, strict: bool, language: str = "native", tags: Tags | None = None
    ) -> None:
        self.name = name
        self.sites = sites
        self.strict = strict
        self.language = language
        self.tags = tags or Tags()
        self.path: BodyRun | None = None
        self._numbers: dict[Reference, int] = {}
        self._known: list[Abstract] = []
        self._clean: dict[int, object] = {}  # options scanned before; kept, so that an id stays its own

    @property
    def ended(self) -> bool:
        """Whether the trace is over: what is left of its values equals nothing then."""
        return self.path is None

    # making values -----------------------------------------------------------------------------------------------

    def member(self, reference: Reference, shape: Shape) -> Any:
        """A value of this shape. Those that Python can tell apart by identity are decided here and now."""
        match shape:
            case TextShape():
                known = self._path().left(reference)  # a switch may have decided what it is
                return self.text(reference, reference, None if known is None else tuple((v, v) for v in known))
            case FiniteShape(choices=choices) if shape.textual:
                return self.text(reference, reference, choices)
            case FiniteShape(choices=choices):
                return self._one_of(reference, choices, lambda value: value, by_value=True)
            case OptionalShape(shape=inside):
                return None if self._is_null(reference) else self.member(reference, inside)
            case OpaqueShape(certain=False):
                self._refuse("reading", reference)
        return Unknown(self, reference, shape)

    def _is_null(self, reference: Reference) -> bool:
        """Decided once in a run."""
        path = self._path()
        groups: tuple[Group, ...] = ((None,), None)
        known = next((d for d in path.decisions if d.on == reference and d.groups == groups), None)
        return (path.decide(reference, groups) if known is None else known.taken) == 0

    def text(self, reference: Reference, on: Reference, domain: Domain | None) -> Abstract:
        """A text value. `domain`: what it may be, by the JSON of `on`; None for anything."""
        return Abstract(self.tag(reference, on, domain), self, reference, on, domain)

    def tag(self, reference: Reference, on: Reference | None = None, domain: Domain | None = None) -> str:
        """The characters that stand for a reference, the same each time."""
        number = self._numbers.get(reference)
        if number is None:
            number = self._numbers[reference] = len(self._known)
            text = self.tags.tag(number)
            self._known.append(Abstract(text, self, reference, on or reference, domain))
        return exact(self._known[number])

    def compound(self, text: str) -> str:
        """A text with tags in it as one value; a text without tags as it is."""
        found = self.tags.find(text)
        numbers = [part for part in found.parts if isinstance(part, int)]
        if not numbers and not found.damage:
            return text
        if len(found.parts) == 1 and numbers:
            return self._known[numbers[0]]
        on = self._known[numbers[0]].on if numbers else Reference("")
        return Abstract(text, self, None, on, None)

    def is_clean(self, option: object) -> bool:
        """Whether no string in an option holds a tag or a piece of one. Specs are scanned once."""
        if isinstance(option, (bool, int, float)):
            return True
        if isinstance(option, str):
            found = self.tags.find(exact(option))
            return not found.damage and not any(isinstance(part, int) for part in found.parts)
        if isinstance(option, (list, tuple)):
            return all(map(self.is_clean, option))
        if isinstance(option, Mapping):
            return all(self.is_clean(key) and self.is_clean(value) for key, value in option.items())
        if id(option) not in self._clean and is_dataclass(option):
            if not all(self.is_clean(getattr(option, f.name)) for f in fields(option)):
                return False
            self._clean[id(option)] = option
        return True

    def reference(self, number: int) -> Reference:
        """What a tag stands for."""
        reference = self._known[number].reference
        if reference is None:
            raise TraceError("a tag stands for no single value")
        return reference

    # asking ------------------------------------------------------------------------------------------------------

    def ask(self, value: Abstract | Unknown, what: str, question: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The answer of a question about a value: see `values.ValueTracer`, which this implements for all values of a trace."""
        path = self._path()
        path.questioned = True
        given = tuple(self._settled(arg, what) if is_abstract(arg) else arg for arg in args)
        if isinstance(value, Abstract):
            if value.domain is not None:
                return self._one_of(value.on, value.domain, lambda v: question(v, *given))
            on = value.on if value.reference is not None else self._unknown_in(value)
            if on is None:
                return question(self._settled(value, what), *given)
            return self._guess(what, on, exact(value), question, given, made_up_texts(given))
        known = value._reference
        return self._guess(what, known, known, question, given, made_up_values(value, given))

    def _guess(
        self, what: str, on: Reference, asked: object, question: Callable[..., Any], given: Sequence[Any], values: Sequence[Any]
    ) -> Any:  # fmt: skip
        """The run goes on with a made-up answer, if it is one of those; else it ends here."""
        path = self._path()
        reason = f"{what} of {named(path.graph, on)}, which does not exist while tracing"
        blind = self.strict or what.startswith(_BLIND)
        answers = [] if blind else possible_answers(lambda value: question(value, *given), values)
        plain = tuple(arg if isinstance(arg, (str, int, float, bool, type(None))) else id(arg) for arg in given)
        return path.guess(reason, on, answers, (on, asked, what, plain))

    def _unknown_in(self, value: Abstract) -> Reference | None:
        """The first value in a text that may be anything."""
        found = self.tags.find(exact(value))
        parts = (self._known[part] for part in found.parts if isinstance(part, int))
        return None if found.damage else next((part.on for part in parts if part.domain is None), None)

    def _settled(self, value: Any, what: str) -> Any:
        """The one value that this run goes on with. Ends the run where there are too many."""
        if type(value) is Unknown:
            self._refuse(what, value._reference)
        if value.domain is not None:
            return self._one_of(value.on, value.domain, str, by_value=True)
        if value.reference is not None:
            self._refuse(what, value.on)
        found = self.tags.find(exact(value))
        if found.damage:
            self._path().stop(f"{what} of {found.damage}")
        return "".join(p if isinstance(p, str) else self._settled(self._known[p], what) for p in found.parts)

    def _one_of(self, on: Reference, domain: Domain, question: Callable[[Any], Any], *, by_value: bool = False) -> Any:
        """Group what is left of the domain by its answer, and go on with one of the groups."""
        path = self._path()
        path.questioned = True
        left = path.left(on)
        groups: dict[str, list[Any]] = {}
        answers: dict[str, tuple[Any, Exception | None]] = {}
        for raw, value in domain:
            if left is not None and not is_among(raw, left):
                continue
            answer, error = _answer(question, value)
            key = repr((type(raw), raw)) if by_value else repr((type(answer), answer, type(error), str(error)))
            answers.setdefault(key, (answer, error))
            groups.setdefault(key, []).append(raw)
        keys = list(groups)
        chosen = keys[path.decide(on, [_group(groups[key]) for key in keys])]
        answer, error = answers[chosen]
        if error is not None:
            raise error
        return answer

    def _refuse(self, what: str, on: Reference | None) -> NoReturn:
        path = self._path()
        source = "a value" if on is None else named(path.graph, on)
        path.stop(f"{what} of {source}, which does not exist while tracing", on)

    def readable(self, text: str) -> str:
        """A message with names in place of tags."""
        return without_tags(text, self._name_of)

    def _name_of(self, tag: str) -> str:
        found = self.tags.find(tag)
        if found.damage or self.path is None or not isinstance(found.parts[0], int):
            return "…"
        reference = self._known[found.parts[0]].reference
        return "…" if reference is None else f"<{named(self.path.graph, reference)}>"

    def _path(self) -> BodyRun:
        if self.path is None:
            raise TraceError(
                f"a value of the trace of {self.name!r} was used after the trace had ended",
                hint="keep values of a trace inside the traced body; run the program for real ones",
                origin=user_origin(),
            )
        return self.path


def named(graph: Graph, reference: Reference) -> str:
    """A value by the name that the user gave it."""
    known = reference.node_id in graph
    node = graph[reference.node_id] if known else None
    name = getattr(node, "name", None) or getattr(node, "tool", None)
    if isinstance(node, Input) and ".item" in node.name:
        shown = "an item of a map"
    elif name is not None:
        shown = f"the value of {name!r}"
    else:
        shown = "a value" if node is None else f"the value of a {node.kind} without a name"
    inner = [
        str(args[0])
        for op, *args in ((o.name, *o.args) for o in reference.operations)
        if op in ("item", "attr") and args
    ]
    return f"{'.'.join(inner)!r} in {shown}" if inner and not isinstance(node, Switch) else shown


def _answer(question: Callable[[Any], Any], value: Any) -> tuple[Any, Exception | None]:
    try:
        return question(value), None
    except Exception as error:  # noqa: BLE001  the question's own error is its answer; it is raised to who asked
        return None, error


def _group(values: list[Any]) -> Group:
    return tuple(values)


# --- what a body may not do -----------------------------------------------------------------------------------------------


_EFFECTS = {
    "builtins.input": "asked for input",
    "os.exec": "started a process",
    "os.fork": "started a process",
    "os.forkpty": "started a process",
    "os.posix_spawn": "started a process",
    "os.spawn": "started a process",
    "os.system": "started a process",
    "subprocess.Popen": "started a process",
    "os.mkdir": "changed the file system",
    "os.remove": "changed the file system",
    "os.rename": "changed the file system",
    "os.rmdir": "changed the file system",
    "os.link": "changed the file system",
    "os.symlink": "changed the file system",
    "os.truncate": "changed the file system",
    "os.chmod": "changed the file system",
    "os.putenv": "changed the environment",
    "os.unsetenv": "changed the environment",
}
_THREADS = (  # not every Python tells an audit hook of a new thread, and none of work for a thread that is there
    (threading.Thread, "start", "started a thread"),
    (ThreadPoolExecutor, "submit", "gave work to a thread"),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_here = threading.local()  # .refuse: what this thread calls for each effect, while it traces
_install = threading.Lock()
_installed = False


@contextmanager
def no_effects(refuse: Callable[[str], Any]) -> Iterator[None]:
    """Inside, on this thread: `refuse(what)` is called before anything leaves the process; it raises to keep it in."""
    _install_hook()
    outer = getattr(_here, "refuse", None)
    _here.refuse = refuse
    try:
        yield
    finally:
        _here.refuse = outer


@contextmanager
def same_random() -> Iterator[Callable[[], None]]:
    """Gives a function that puts the random state back to where it is now; it is put back at the end too."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

    try:
        yield restore
    finally:
        restore()


def _install_hook() -> None:
    global _installed
    with _install:
        if not _installed:
            sys.addaudithook(_hook)
            for owner, name, what in _THREADS:
                setattr(owner, name, _checked(getattr(owner, name), what))
            _installed = True


def _checked(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The method, refused in a traced body: a thread's work would be done outside of the trace, once per run of the body."""

    @wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        refuse = getattr(_here, "refuse", None)
        if refuse is not None:
            refuse(what)
        return method(*args, **kwargs)

    return checked


def _hook(event: str, args: tuple[Any, ...]) -> None:
    refuse = getattr(_here, "refuse", None)
    if refuse is None:
        return
    what = _effect(event, args)
    if what:
        _here.refuse = None  # what follows of the refusal is our own work
        try:
            refuse(what)
        finally:
            _here.refuse = refuse


def _effect(event: str, args: tuple[Any, ...]) -> str:
    """What the body is about to do, or "" for what a trace may repeat."""
    if event == "open":
        path, _, flags = args
        return "" if not flags & _WRITING or _is_cache(path) else f"opened {path!r} for writing"
    if event.startswith("socket.") and event not in ("socket.gethostname", "socket.getservbyname"):
        return "used a socket"
    what = _EFFECTS.get(event, "")
    return "" if what == _EFFECTS["os.mkdir"] and any(map(_is_cache, args)) else what


def _is_cache(path: object) -> bool:
    """Whether it is Python's own cache of an import, or no file at all."""
    return isinstance(path, (str, bytes)) and ("__pycache__" in os.fsdecode(path) or os.fsdecode(path) == os.devnull)


R = TypeVar("R")


def driven(call: Callable[[], Any], refuse: Callable[[str], Any], *, asynchronous: bool) -> Any:
    """What `call()` gives, or what its coroutine does; `refuse`: see `no_effects`."""
    if not asynchronous:
        with _kept_inside(refuse):
            return call()
    found: list[Any] = []  # a task's own result is shown in places, and showing an abstract value is asking

    async def follow() -> None:
        found.append(await call())

    with asyncio.Runner() as runner:
        runner.get_loop()  # makes its sockets before the guard stands
        with _kept_inside(refuse):
            runner.run(follow())
    return found[0]


@contextmanager
def _kept_inside(refuse: Callable[[str], Any]) -> Iterator[None]:
    """Nothing leaves the process and no model is asked."""
    with no_models(lambda what: refuse(f"{what}, and a trace asks no model")), no_effects(refuse):
        yield


def outside_of_loops(work: Callable[[], R], *, asynchronous: bool) -> R:
    """`work()`; where it drives coroutines and this thread's loop is running already, in a thread of its own."""
    if not asynchronous or not _loop_is_running():
        return work()
    found: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  raised below, in the caller's thread
            failed.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
