"""The Target in front of the mock's engine: logs every request, looks up its reply, and hands it to the engine as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import current_thread, main_thread

from ....errors import ScriptError
from ...engine.engine import Engine
from ...interpret.forwarding import ForwardingTarget
from ...schedule.request import GenerateRequest, Request, Result, ScoreRequest, ScoreResult, Sink
from .log import Call, CallLog
from .reply import Reply
from .script import Locked, unscripted
from .text import MockTokenizer
from .worker import MockWorker

Answer = Callable[[Call], Reply | None]

WON, LOST = -0.1, -5.0  # log-probabilities of the choice a script names, and of the others


class MockTarget(ForwardingTarget):
    """Thread-safe. Replies are looked up in the order of submission, whatever order the scheduler then finds.

    fallback: answers calls the script does not; where it has none either, the call fails (a select is scored by the
    worker's own language model if `scores_freely`).
    """

    def __init__(
        self,
        engine: Engine,
        worker: MockWorker,
        tokenizer: MockTokenizer,
        script: Locked,
        fallback: Answer,
        *,
        scores_freely: bool,
    ) -> None:
        super().__init__(engine)
        self.log = CallLog()
        self._worker = worker
        self._tokenizer = tokenizer
        self._script = script
        self._fallback = fallback
        self._scores_freely = scores_freely

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """See `Target`."""
        accepted: list[tuple[Request, Sink]] = []
        refused: list[tuple[Sink, Request, Exception]] = []
        for request, sink in requests:
            call = Call(request, self._tokenizer, self._choices(request))
            self.log.add(call)
            logged = LoggedSink(sink, self.log, call)
            try:
                accepted.append(self._prepared(request, logged, call))
            except Exception as error:  # noqa: BLE001 - whatever a script does is its call's failure
                refused.append((logged, request, error))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                    raise
                refused.append((logged, request, _script_raised(error)))
        if accepted:
            self._behind.submit(accepted)
        for sink, request, cause in refused:
            if request.lease is not None:
                self.release(request.lease, 1)
            sink.done(cause)

    def _prepared(self, request: Request, sink: LoggedSink, call: Call) -> tuple[Request, Sink]:
        """The request as the engine gets it, its reply laid out for the worker."""
        reply = self._script.answer(call) or self._fallback(call)
        if isinstance(request, ScoreRequest):
            if reply is None and not self._scores_freely:
                raise unscripted(call, self._script.script)
            if reply is not None and reply.error is not None:
                raise reply.error
            sink.finish = lambda result: _scored(result, call, reply)
            return request, sink
        if reply is None:
            raise unscripted(call, self._script.script)
        if reply.max_tokens is not None:
            most = min(reply.max_tokens, request.sampling.most_tokens)
            sampling = replace(request.sampling, max_tokens=most, min_tokens=min(request.sampling.min_tokens, most))
            request = replace(request, sampling=sampling)
        self._worker.assign(request, reply)
        sink.forget = lambda: self._worker.forget(request)
        return request, sink

    def _choices(self, request: Request) -> tuple[str, ...]:
        if isinstance(request, GenerateRequest):
            return ()
        return tuple(self._tokenizer.decode(continuation) for continuation in request.continuations)


class LoggedSink:
    """Passes everything on, and notes it in the log."""

    def __init__(self, sink: Sink, log: CallLog, call: Call) -> None:
        self._sink = sink
        self._log = log
        self._call = call
        self.finish: Callable[[Result], Result] = lambda result: result
        self.forget: Callable[[], None] = lambda: None

    def started(self) -> None:
        """See `Sink`."""
        self._log.start(self._call)
        self._sink.started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """See `Sink`."""
        self._call.deltas.append(delta)
        self._sink.text(delta, token_ids)

    def lost(self, tokens: int) -> None:
        """See `Sink`."""
        if (lost := getattr(self._sink, "lost", None)) is not None:
            lost(tokens)

    def done(self, result: Result | Exception) -> None:
        """See `Sink`."""
        self.forget()
        if not isinstance(result, Exception):
            try:
                result = self.finish(result)
            except ScriptError as error:
                result = error
        self._log.end(self._call, result)
        self._sink.done(result)


def _script_raised(error: BaseException) -> ScriptError:
    raised = ScriptError(f"the script raised {type(error).__name__}: {error}", hint="a script gives replies or errors")
    raised.__cause__ = error
    return raised


def _scored(result: Result, call: Call, reply: Reply | None) -> Result:
    """The engine's scores with the script's in their place. Raises ScriptError where they do not fit the choices."""
    if reply is None or not isinstance(result, ScoreResult):
        return result
    if reply.scores:
        table = dict(reply.scores)
    elif reply.text in call.choices:
        table = {choice: (WON if choice == reply.text else LOST,) for choice in call.choices}
    else:
        raise ScriptError(
            f"the script answers select {call.name or call.node_id!r} with {reply.text!r}, which is no choice of it: "
            f"{list(call.choices)}",
            hint="name one of the choices, or give a dict of scores by choice",
        )
    missing = [choice for choice in call.choices if choice not in table]
    if missing:
        raise ScriptError(f"the script has no score for choice {missing[0]!r} of select {call.name or call.node_id!r}")
    logprobs = tuple(
        _stretched(table[choice], len(path)) for choice, path in zip(call.choices, result.logprobs, strict=True)
    )
    return replace(result, logprobs=logprobs)


def _stretched(scores: Sequence[float], tokens: int) -> tuple[float, ...]:
    """One number stands for each token; a list is taken as it is."""
    return tuple(scores) * tokens if len(scores) == 1 else tuple(scores)
