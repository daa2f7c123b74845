"""The mock backend: the engine of production with a scripted model, a cost model and virtual seconds. No torch.

In front of its engine stands a Target that logs every request, looks up its reply, lays that out for the worker, and hands the request
to the engine as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock, current_thread, main_thread
from typing import Any, Literal, TypeAlias, get_args

from ....errors import ScriptError, SpecError
from ....ir.specs import flag, one_of, shown, utf8_text, whole
from ...constrain.compile import audit
from ...engine.border import EngineConfig
from ...engine.engine import Engine
from ...engine.metrics import VirtualClock
from ...interpret.target import ForwardingTarget
from ...schedule.request import Request, Result, ScoreRequest, ScoreResult, Sink
from ...schedule.step import WorkerInfo
from ...text.tokenizer import ChatTemplate
from ..interpreted import InterpretedExecutor
from .calls import Call, CallLog, Calls, Piece, Reply, echo, pieces, token_logprob, valid
from .calls import cut_off as cut_off
from .calls import fails as fails
from .calls import malformed as malformed
from .calls import stalls as stalls
from .script import (
    FailingCalls,
    Policy,
    ReplyFunction,
    ScoredSelects,
    Scores,
    Script,
    ScriptLike,
    left_over,
    script_of,
    unscripted,
)
from .script import Rule as Rule
from .worker import CostModel, LanguageModel, MockText, MockTokenizer, MockWorker

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
        script: Script,
        fallback: Answer,
        *,
        scores_freely: bool,
    ) -> None:
        super().__init__(engine)
        self.log = CallLog()
        self._worker = worker
        self._tokenizer = tokenizer
        self._script = script
        self._answering = Lock()
        self._fallback = fallback
        self._scores_freely = scores_freely

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Queue requests; those of one call are admitted together where they fit. Errors arrive at each Sink."""
        accepted: list[tuple[Request, Sink]] = []
        refused: list[tuple[Sink, Request, Exception]] = []
        for request, sink in requests:
            paths = request.continuations if isinstance(request, ScoreRequest) else ()
            call = Call(request, self._tokenizer, tuple(map(self._tokenizer.decode, paths)))
            self.log.add(call)
            logged = LoggedSink(sink, self.log, call, self._worker)
            try:
                accepted.append((self._prepared(request, logged, call), logged))
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

    def _prepared(self, request: Request, sink: LoggedSink, call: Call) -> Request:
        """The request as the engine gets it, its reply laid out for the worker."""
        with self._answering:
            reply = self._script.answer(call)
        reply = reply or self._fallback(call)
        if isinstance(request, ScoreRequest):
            if reply is None and not self._scores_freely:
                raise unscripted(call, self._script)
            if reply is not None and reply.error is not None:
                raise reply.error
            sink.reply = reply
            return request
        if reply is None:
            raise unscripted(call, self._script)
        if reply.max_tokens is not None:
            most = min(reply.max_tokens, request.sampling.most_tokens)
            sampling = replace(request.sampling, max_tokens=most, min_tokens=min(request.sampling.min_tokens, most))
            request = replace(request, sampling=sampling)
        sink.reply = reply
        self._worker.replies.setdefault(request.request_id, reply)
        return request


@dataclass(slots=True)
class LoggedSink:
    """Passes everything on, and notes it in the log. `reply`: what its request is answered."""

    _sink: Sink
    _log: CallLog
    _call: Call
    _worker: MockWorker
    reply: Reply | None = None

    def started(self) -> None:
        """The request was admitted for the first time."""
        self._call.started = self._log.tick()
        self._sink.started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Text released (UTF-8 complete, past any possible stop) and the ids sampled since the last call."""
        self._call.deltas.append(delta)
        self._sink.text(delta, token_ids)

    def lost(self, tokens: int) -> None:
        """The request ended without a result after so many tokens had been computed for it."""
        if (lost := getattr(self._sink, "lost", None)) is not None:
            lost(tokens)

    def done(self, result: Result | Exception) -> None:
        """The end: a result, or why there is none."""
        call, reply = self._call, self.reply
        if reply is not None and self._worker.replies.get(call.request.request_id) is reply:
            del self._worker.replies[call.request.request_id]
        if isinstance(result, ScoreResult) and reply is not None:
            try:
                result = _scored(result, call, reply)
            except ScriptError as error:
                result = error
        call.result, call.ended = result, self._log.tick()
        self._sink.done(result)


def _script_raised(error: BaseException) -> ScriptError:
    raised = ScriptError(f"the script raised {type(error).__name__}: {error}", hint="a script gives replies or errors")
    raised.__cause__ = error
    return raised


def _scored(result: ScoreResult, call: Call, reply: Reply) -> ScoreResult:
    """The engine's scores with the script's in their place. Raises ScriptError where they do not fit the choices."""
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


Unscripted: TypeAlias = Literal["error", "schema", "echo"]


class MockExecutor(InterpretedExecutor):
    """Implements `Executor`. Made by `mock(...)`; as a context manager it checks at the end that the script was used up.

    with mock({"answer": "yes"}) as backend:
        assert program.run(options=RunOptions(backend=backend)).value == "yes"
        assert backend.calls("answer").count == 1
    """

    def __init__(self, target: MockTarget, engine: Engine, script: Script, *, share_equal: bool) -> None:
        super().__init__("mock", target, engine.close, share_equal=share_equal)
        self.engine = engine
        self._mock_target = target
        self._script = script

    @property
    def log(self) -> CallLog:
        """Every call so far."""
        return self._mock_target.log

    def calls(self, which: str | Callable[[Call], bool] | None = None) -> Calls:
        """The calls of a gen or select (by name or node id), of a predicate, or all."""
        return self.log.calls(which)

    def verify(self) -> None:
        """Raise ScriptError if scripted replies, or faults put around this mock, were not used."""
        super().verify()
        error = left_over(self._script)
        if error is not None:
            raise error

    def __enter__(self) -> MockExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        if exception[1] is None:
            self.verify()


def mock(
    script: ScriptLike = None,
    *,
    emits: Sequence[str | bytes | Piece] | None = None,
    fail_if: str | None = None,
    unscripted: Unscripted | None = None,
    policy: Policy = "strict",
    scores: Scores | None = None,
    masked: bool = False,
    language_model: LanguageModel | None = None,
    template: ChatTemplate | None = None,
    context_tokens: int = 32_768,
    num_pages: int = 1 << 16,
    page_size: int = 1,
    share_equal: bool = False,
    cost: CostModel | None = None,
    config: EngineConfig | None = None,
) -> MockExecutor:
    """A backend without a model. Everything below the model is real: stops, UTF-8, constraints, cache, batches, time.

    Args:
        script: which call gets which reply; see `script.py` for the forms.
        emits: every call is answered with exactly these token pieces (instead of `script`).
        fail_if: calls whose prompt contains this text fail; without a script, all others echo.
        unscripted: what a call without a reply gets: an "error" with its prompt and node (the default); "schema": a valid
            value where it has a constraint; "echo": its name and a code of its prompt, too. Deterministic.
        policy: after the last reply of a list: an error ("strict"), again from the first ("cycle"), the "last" for ever, or
            an "echo".
        scores: log-probabilities of a select's choices that are not scripted: a function of call and choice, or a dict of
            dicts (by select and choice). One number stands for each of the choice's tokens.
        masked: a reply that breaks its call's constraint is cut there and completed by an allowed text, as a model's would
            be; else it fails with a ScriptError.
        language_model: log-probability of a token's text after a text; scores the selects that are not scripted.
        template: of chat roles; ChatML by default.
        page_size, num_pages, context_tokens: of the pretended model.
        share_equal: whether equal calls of a run are one, as on a model; off, because a script need not be a function of
            the prompt.
        cost: virtual seconds of a step.
        config: of the engine.

    Raises:
        SpecError: an option that is none, or both `script` and `emits`. ScriptError: a script that is none.
    """
    _check_options(
        emits=emits,
        fail_if=fail_if,
        unscripted=unscripted,
        policy=policy,
        scores=scores,
        masked=masked,
        language_model=language_model,
        template=template,
        context_tokens=context_tokens,
        num_pages=num_pages,
        page_size=page_size,
        share_equal=share_equal,
        cost=cost,
        config=config,
    )
    if script is not None and emits is not None:
        raise SpecError("mock() was given both a script and emits", hint="give one of them")
    if unscripted is None:
        alone = fail_if is not None and script is None and emits is None
        unscripted = "echo" if alone or policy == "echo" else "error"
    found = ReplyFunction(_emitting(emits)) if emits is not None else script_of(script, policy)
    if scores is not None:
        found = ScoredSelects(scores, found)
    if fail_if is not None:
        found = FailingCalls(fail_if, found)
    tokenizer = MockTokenizer()
    info = WorkerInfo(
        model="mock",
        fingerprint="mock",
        context_tokens=context_tokens,
        vocab_size=tokenizer.vocab_size,
        page_size=page_size,
        num_pages=num_pages,
        kv_bytes_per_token=1,
        kv_layout="tokens",
    )
    worker = MockWorker(
        info,
        tokenizer,
        cost=cost or CostModel(),
        language_model=language_model or token_logprob,
        masked=masked,
    )
    engine = Engine(
        worker,
        MockText(tokenizer, template),
        config=config or EngineConfig(),
        clock=VirtualClock(),
        audit=partial(audit, count_tokens=tokenizer.count),
    )
    target = MockTarget(
        engine,
        worker,
        tokenizer,
        found,
        _FALLBACKS[unscripted],
        scores_freely=unscripted == "echo" or language_model is not None,
    )
    return MockExecutor(target, engine, found, share_equal=share_equal)


def open_mock(argument: str) -> MockExecutor:
    """The backend called "mock": unscripted, every call is answered as `unscripted="echo"` says.

    Raises:
        SpecError: "mock:something".
    """
    if argument:
        raise SpecError(f"the mock takes no argument, got {argument!r}", hint='backend="mock", or a mock(...) object')
    return mock(unscripted="echo")


def _check_options(**options: Any) -> None:
    """Raise SpecError, with the options' names, for what mock() cannot work with."""
    one_of("unscripted", options["unscripted"], (None, *get_args(Unscripted)))
    one_of("policy", options["policy"], get_args(Policy))
    for name in ("masked", "share_equal"):
        flag(name, options[name])
    for name in ("context_tokens", "num_pages", "page_size"):
        whole(name, options[name], 1)
    emits, scores = options["emits"], options["scores"]
    if emits is not None and (
        isinstance(emits, (str, bytes))
        or not isinstance(emits, Sequence)
        or not all(isinstance(token, (str, bytes, Piece)) for token in emits)
    ):
        raise SpecError(f"emits={shown(emits)} is no list of token pieces", hint='emits=["red ", b"\\xf0\\x9f", ...]')
    if options["fail_if"] is not None:
        utf8_text("fail_if", options["fail_if"])
    if scores is not None and not callable(scores) and not isinstance(scores, Mapping):
        raise SpecError(f"scores={shown(scores)} is neither a dict nor a function", hint='scores={"kind": {"a": -1.0}}')
    for name, kind in (("cost", CostModel), ("config", EngineConfig)):
        if options[name] is not None and not isinstance(options[name], kind):
            raise SpecError(f"{name}={shown(options[name])} is no {kind.__name__}", hint=f"{name}={kind.__name__}(...)")
    if options["language_model"] is not None and not callable(options["language_model"]):
        raise SpecError(
            f"language_model={shown(options['language_model'])} is no function", hint="a function of two texts"
        )
    template = options["template"]
    if template is not None and not callable(getattr(template, "open_turn", None)):
        raise SpecError(f"template={shown(template)} is no ChatTemplate", hint="template=ChatMlTemplate(...)")


def _nothing(call: Call) -> Reply | None:
    return None


_FALLBACKS: dict[Unscripted, Callable[[Call], Reply | None]] = {"error": _nothing, "schema": valid, "echo": echo}


def _emitting(tokens: Sequence[str | bytes | Piece]) -> Callable[[Call], Reply]:
    reply = pieces(*tokens)
    return lambda call: reply
