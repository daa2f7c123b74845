"""A Target without an engine: replies are given at once, or when the test says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_dsl.errors import CancelledError, EngineClosedError
from sglang_dsl.ir.execution import ConstraintReport
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.cache.keys import Namespace
from sglang_dsl.runtime.schedule.request import (
    GenerateRequest,
    GenerateResult,
    Request,
    ScoreRequest,
    ScoreResult,
    Sink,
    TargetInfo,
)
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate, PieceTokenizer

Reply = Callable[[Request], Any]


class FakeText:
    """ChatML over pieces."""

    def __init__(self, **template: Any) -> None:
        self.tokenizer = PieceTokenizer()
        self.template = ChatMlTemplate(**template)


@dataclass
class Held:
    """A request that waits for the test."""

    request: Request
    sink: Sink
    ended: bool = False


@dataclass
class FakeTarget:
    """`reply`: text (or GenerateResult, ScoreResult, exception) for a request; None holds all until `release`."""

    reply: Reply | None = None
    context_tokens: int = 4096
    text: FakeText = field(default_factory=FakeText)
    clock_s: float = 0.0
    closed: bool = False

    def __post_init__(self) -> None:
        self.info = TargetInfo(
            model="fake", context_tokens=self.context_tokens, kv_bytes_per_token=2, namespace=Namespace(model="fake")
        )
        self.submits: list[list[Request]] = []
        self.held: list[Held] = []
        self.cancelled: list[str] = []
        self.leases: dict[int, tuple[tuple[int, ...], int]] = {}
        self._lease_ids = itertools.count(1)
        self._submitted = threading.Condition()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    # Target

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        if self.closed:
            raise EngineClosedError("closed")
        self.submits.append([request for request, _ in requests])
        held = [Held(request, sink) for request, sink in requests]
        with self._submitted:
            self.held.extend(held)
            self._submitted.notify_all()
        for each in held:
            if each.request.lease is not None:
                self.release(each.request.lease, 1)
            each.sink.started()
            if self.reply is not None:
                self.finish(each, self.reply(each.request))

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        for held in self.held:
            if held.request.request_id in request_ids and not held.ended:
                held.ended = True
                self.cancelled.append(held.request.request_id)
                held.sink.done(CancelledError(reason))

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> int:
        lease_id = next(self._lease_ids)
        self.leases[lease_id] = (tuple(prompt_ids), children)
        return lease_id

    def release(self, lease: int, children: int | None = None) -> None:
        if lease not in self.leases:
            return
        prompt_ids, left = self.leases[lease]
        left = 0 if children is None else left - children
        if left > 0:
            self.leases[lease] = (prompt_ids, left)
        else:
            del self.leases[lease]

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        return ConstraintReport()

    def now(self) -> float:
        return self.clock_s

    # the test's side

    def finish(self, held: Held, reply: Any) -> None:
        held.ended = True
        held.sink.done(self._result(held, reply))

    def answer(self, name: str, reply: Any) -> None:
        """End the oldest open request of this name; waits for it to be made."""
        with self._submitted:
            assert self._submitted.wait_for(lambda: self._open(name) is not None, 5), f"no call of {name!r} is open"
            held = self._open(name)
        assert held is not None
        if isinstance(reply, str):
            held.sink.text(reply, self.text.tokenizer.encode(reply))
        self.finish(held, reply)

    def _open(self, name: str) -> Held | None:
        return next((h for h in self.held if not h.ended and h.request.label.name == name), None)

    def prompt(self, request: Request) -> str:
        """What a request was given, control tokens included."""
        names = {i: t for t, i in self.text.tokenizer._control.items()}
        pieces = (names.get(i) or self.text.tokenizer.decode([i]) for i in request.prompt_ids)
        return "".join(pieces)

    @property
    def requests(self) -> list[Request]:
        return [request for submit in self.submits for request in submit]

    @property
    def prompts(self) -> list[str]:
        return [self.prompt(request) for request in self.requests]

    def _result(self, held: Held, reply: Any) -> Any:
        request = held.request
        counts = {
            "request_id": request.request_id,
            "prompt_tokens": len(request.prompt_ids),
            "computed_tokens": len(request.prompt_ids),
            "started_s": self.clock_s,
            "finished_s": self.clock_s,
        }
        if isinstance(request, ScoreRequest) and not isinstance(reply, (Exception, ScoreResult)):
            return ScoreResult(logprobs=tuple(map(tuple, reply)), **counts)
        if isinstance(reply, tuple):
            text, reason = reply
            ids = tuple(self.text.tokenizer.encode(text))
            return GenerateResult(token_ids=ids, text=text, finish_reason=reason, generated_tokens=len(ids), **counts)
        if isinstance(reply, str) and isinstance(request, GenerateRequest):
            ids = tuple(self.text.tokenizer.encode(reply))
            return GenerateResult(
                token_ids=ids, text=reply, finish_reason="eos", generated_tokens=len(ids) + 1, **counts
            )
        return reply
