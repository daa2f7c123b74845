"""Faults on purpose: what a program does when a call fails, stalls, is cut off or answers nonsense.

    backend = with_faults(mock({"answer": "yes"}), {"answer": Fault("cut", after=2)})

Works on any backend with a model, a replayed cassette included. The call itself is made (but for "refuse"); what comes back is
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from ..errors import CancelledError, DeadlineError, EngineError, QueueFullError, ScriptError, SpecError
from ..ir.execution import Executor, resolve
from ..ir.specs import one_of, shown, utf8_text, whole
from ..runtime.backends.interpreted import HasTarget, InterpretedExecutor
from ..runtime.interpret.target import ForwardingTarget, Target
from ..runtime.schedule.request import GenerateResult, Request, Result, Sink
from ..runtime.text.tokenizer import Tokenizer

FaultKind: TypeAlias = Literal["refuse", "fail", "stall", "cut", "malformed"]


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong.

    refuse: the call is never made; it ends with `error` (by default a retryable QueueFullError). fail: `error` after so many
    tokens. stall: nothing comes; the call ends by its deadline, which a test need not wait for, or when it is cancelled. cut: the output ends by length after so many tokens.
    malformed: the call answers `text`. `times`: for the first so many calls only.
    """

    kind: FaultKind
    after: int = 0
    error: Exception | None = None
    text: str = "{"
    times: int | None = None
    used: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(FaultKind))
        whole("after", self.after, 0)
        utf8_text("text", self.text)
        if self.times is not None:
            whole("times", self.times, 1)
        if self.error is not None and not isinstance(self.error, Exception):
            raise SpecError(f"error={shown(self.error)} is no exception", hint='error=EngineError("down")')

    def take(self) -> bool:
        """Whether it strikes once more."""
        if self.times is not None and self.used >= self.times:
            return False
        self.used += 1
        return True


def with_faults(backend: str | Executor, faults: Mapping[str, Fault]) -> InterpretedExecutor:
    """A backend whose calls of these names (or node ids) go wrong. Closing it closes `backend`.

    As a context manager, or where `backend` is verified at the end of a test, it raises ScriptError if a fault never struck.

    Raises:
        SpecError: what is no fault; the backend has no model of its own.
    """
    if not isinstance(faults, Mapping):
        raise SpecError(f"faults={shown(faults)} is no dict of faults by name", hint='{"answer": Fault("fail")}')
    for name, fault in faults.items():
        if not isinstance(name, str) or not isinstance(fault, Fault):
            raise SpecError(f"{shown(name)}: {shown(fault)} is no fault by name", hint='{"answer": Fault("fail")}')
    executor = resolve(backend)
    if not isinstance(executor, HasTarget):
        raise SpecError(f"backend {executor.name!r} has no model whose calls could fail")
    faulty = FaultyExecutor(executor, FaultyTarget(executor.target, faults))
    faulty.also_verify(partial(_all_struck, faults))
    if isinstance(executor, InterpretedExecutor):
        executor.also_verify(partial(_all_struck, faults))
    return faulty


class FaultyExecutor(InterpretedExecutor):
    """Implements `Executor` around another. Made by `with_faults(...)`."""

    def __init__(self, executor: Executor, target: FaultyTarget) -> None:
        super().__init__(f"{executor.name} with faults", target, executor.close)
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        """What the backend itself answers: a mock's `calls`, `log` and the like."""
        return getattr(self._executor, name)

    def __exit__(self, *exception: object) -> None:
        self.close()
        if exception[1] is None:
            self.verify()
            if isinstance(self._executor, InterpretedExecutor):
                self._executor.verify()


def _all_struck(faults: Mapping[str, Fault]) -> None:
    idle = [name for name, fault in faults.items() if not fault.used]
    if idle:
        raise ScriptError(
            f"{len(idle)} faults never struck: {', '.join(map(repr, idle))}; no call of these names was made",
            hint="correct the name, or remove the fault",
        )


class FaultyTarget(ForwardingTarget):
    """A Target around another."""

    def __init__(self, target: Target, faults: Mapping[str, Fault]) -> None:
        super().__init__(target)
        self._faults = faults
        self._stalled: dict[str, Sink] = {}

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Make the calls, but for those whose fault withholds them; what comes back of the others may be changed."""
        sound: list[tuple[Request, Sink]] = []
        for request, sink in requests:
            fault = self._faults.get(request.label.name) or self._faults.get(request.label.node_id)
            if fault is None or not fault.take():
                sound.append((request, sink))
            elif fault.kind in ("refuse", "stall"):
                self._withhold(request, sink, fault)
            else:
                end = _cancelling(self._behind, request.request_id)
                sound.append((request, FaultySink(sink, fault, self.text.tokenizer, end)))
        if sound:
            self._behind.submit(sound)

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """End these calls: one that stalls here, the others in the target behind."""
        for request_id in request_ids:
            if (sink := self._stalled.pop(request_id, None)) is not None:
                sink.done(CancelledError(reason or "the request was cancelled"))
        super().cancel(request_ids, reason)

    def _withhold(self, request: Request, sink: Sink, fault: Fault) -> None:
        if request.lease is not None:
            self.release(request.lease, 1)
        if fault.kind == "stall" and request.deadline_s is None:
            self._stalled[request.request_id] = sink
        elif fault.kind == "stall":
            sink.done(DeadlineError("the call stalled until its deadline (a fault of this test)"))
        else:
            sink.done(fault.error or QueueFullError("the queue is full (a fault of this test)", retryable=True))


class FaultySink:
    """Changes what comes back of one call."""

    def __init__(self, sink: Sink, fault: Fault, tokenizer: Tokenizer, end: Callable[[], None]) -> None:
        self._sink = sink
        self._fault = fault
        self._tokenizer = tokenizer
        self._end = end
        self._text = ""
        self._ids: list[int] = []
        self._over = False

    def started(self) -> None:
        """The call was admitted; a fault after no tokens strikes now."""
        self._sink.started()
        self._strike_if_due()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Pass text on up to the token at which the fault strikes."""
        if self._over or self._fault.kind == "malformed":
            return
        room = self._fault.after - len(self._ids)
        if len(token_ids) > room:
            token_ids = token_ids[:room]
            delta = self._tokenizer.decode(token_ids)
        self._ids.extend(token_ids)
        self._text += delta
        if delta:
            self._sink.text(delta, token_ids)
        self._strike_if_due()

    def done(self, result: Result | Exception) -> None:
        """Pass the end on, unless the fault has ended the call; a malformed answer replaces it."""
        if self._over:
            return
        if self._fault.kind == "malformed" and isinstance(result, GenerateResult):
            ids = tuple(self._tokenizer.encode(self._fault.text))
            self._sink.text(self._fault.text, ids)
            result = replace(result, text=self._fault.text, token_ids=ids, covered_ids=(), tail_text="", torn=None)
        self._over = True
        self._sink.done(result)

    def _strike_if_due(self) -> None:
        if self._over or self._fault.kind == "malformed" or len(self._ids) < self._fault.after:
            return
        self._over = True
        self._end()
        if self._fault.kind == "fail":
            self._sink.done(
                self._fault.error or EngineError("the engine failed (a fault of this test)", retryable=True)
            )
            return
        ids = tuple(self._ids)
        self._sink.done(
            GenerateResult(
                request_id="", token_ids=ids, text=self._text, finish_reason="length", generated_tokens=len(ids)
            )
        )


def _cancelling(target: Target, request_id: str) -> Callable[[], None]:
    return lambda: target.cancel([request_id], "a fault of this test")
