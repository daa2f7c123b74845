"""An executor small enough to read: it says what a script says, so that the frontend is tested alone."""

from __future__ import annotations

import json
import threading
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from sglang_dsl.errors import CancelledError, EngineClosedError, InvalidValueError, JoinError
from sglang_dsl.ir.execution import MISSING, Event, Meta, Outcome, RunSpec, RunSummary, Usage
from sglang_dsl.ir.nodes import (
    Concat,
    Constant,
    DictOf,
    Gen,
    Join,
    ListOf,
    Node,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    ToolNode,
    taking_part,
)
from sglang_dsl.ir.operations import apply_all
from sglang_dsl.ir.record import RunRecord

Reply = Callable[[Node, str], str]


class FakeRun:
    """Resolves each node as soon as what it needs is there. `held` names wait for `release`."""

    def __init__(self, executor: FakeExecutor, spec: RunSpec) -> None:
        self.seed = spec.options.seed or 0
        self.spec = spec
        self.executor = executor
        self.nodes: dict[str, Node] = {}
        self.futures: dict[str, Future[Outcome]] = {}
        self.prompts: dict[str, str] = {}
        self.registry: dict[str, Callable[..., Any]] = dict(spec.registry)
        self.extends: list[list[str]] = []
        self.pending: list[Node] = []
        self.sealed: Future[RunSummary] | None = None
        self.cancelled = ""
        self.listeners: list[Callable[[Event], None]] = []
        self.told: list[Event] = []
        self.lock = threading.RLock()

    def register(self, key: str, function: Callable[..., Any]) -> None:
        self.registry[key] = function

    def await_on(self, loop: AbstractEventLoop) -> None:
        pass

    def extend(self, nodes: Sequence[Node]) -> None:
        with self.lock:
            if self.sealed is not None:
                raise EngineClosedError("the run is sealed")
            if self.cancelled:
                raise CancelledError(self.cancelled)
            for node in nodes:
                self._raise_failure(node.context)
            self.extends.append([node.id for node in nodes])
            for node in nodes:
                assert node.id not in self.nodes, node.id
                assert node.context is None or node.context in self.nodes, node
                self.nodes[node.id] = node
                self.futures.setdefault(node.id, Future())
                self.pending.append(node)
            self._pump()

    def _raise_failure(self, node_id: str | None) -> None:
        future = self.futures.get(node_id or "")
        if isinstance(self.nodes.get(node_id or ""), Join):
            return
        if future is not None and future.done() and future.exception() is not None:
            raise future.exception()  # type: ignore[misc]

    def value(self, node_id: str) -> Future[Outcome]:
        with self.lock:
            return self.futures.setdefault(node_id, Future())

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        with self.lock:
            if node_ids is None:
                self.cancelled = reason
            below = set(self.nodes) if node_ids is None else set(node_ids)
            for node in self.nodes.values():
                if node.context in below:
                    below.add(node.id)
            for node in [n for n in self.pending if n.id in below]:
                self.pending.remove(node)
                self.futures[node.id].set_exception(CancelledError(f"cancelled: {reason}"))
            self._pump()

    def seal(self) -> Future[RunSummary]:
        with self.lock:
            self.sealed = self.sealed or Future()
            self._pump()
            return self.sealed

    def release(self, *names: str) -> None:
        with self.lock:
            self.executor.held -= set(names)
            self._pump()

    def record(self) -> RunRecord:
        return RunRecord(program=self.spec.program, seed=self.seed)

    def events(self) -> Iterator[Event]:
        return iter(())

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        with self.lock:
            for event in self.told if replay else ():
                listener(event)
            self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def _pump(self) -> None:
        progress = True
        while progress:
            progress = False
            for node in list(self.pending):
                if node in self.pending and self._ready(node):
                    self.pending.remove(node)
                    self._resolve(node)
                    progress = True
        if self.sealed is not None and not self.pending and not self.sealed.done():
            failures = [f.exception() for f in self.futures.values() if f.done() and f.exception()]
            calls = sum(isinstance(n, (Gen, Select)) for n in self.nodes.values())
            error = failures[0] if failures else None
            self.sealed.set_result(RunSummary(usage=Usage(calls=calls), seed=self.seed, error=error))

    def _ready(self, node: Node) -> bool:
        if getattr(node, "name", None) in self.executor.held and not isinstance(node, Join):
            return False
        needed = [node.context] if node.context is not None else []
        if isinstance(node, Join):
            needed += node.tips
        return all(self.futures[n].done() for n in needed) and self._data_ready(node)

    def _data_ready(self, node: Node) -> bool:
        from sglang_dsl.ir.nodes import data_of

        return all(self.futures[n].done() for n in data_of(node))

    def _resolve(self, node: Node) -> None:
        future = self.futures[node.id]
        before = self.futures.get(node.context or "")
        prompt = self.prompts.get(node.context or "", "")
        try:
            if before is not None and before.exception() is not None:
                passed = isinstance(self.nodes[node.context or ""], Join)  # a join adds no text: what follows can go on
                if not passed:
                    raise before.exception()  # type: ignore[misc]
            outcome = self._outcome(node, prompt)
        except Exception as error:  # noqa: BLE001
            self.prompts[node.id] = prompt
            future.set_exception(error)
            return
        self.prompts[node.id] = prompt + outcome.text
        half = len(outcome.text) // 2
        for text in (outcome.text[:half], outcome.text[half:]):
            if isinstance(node, Gen) and text:
                self.told.append(Event(kind="text", node_id=node.id, text=text))
                for listener in list(self.listeners):
                    listener(self.told[-1])
        future.set_result(outcome)

    def _outcome(self, node: Node, prompt: str) -> Outcome:
        match node:
            case Text(pieces=pieces):
                texts = [self._text(self._evaluate(p)) if isinstance(p, Reference) else p.text for p in pieces]
                return Outcome(text="".join(texts))
            case RoleBegin(role=role):
                return Outcome(text=f"<{role}>")
            case RoleEnd():
                return Outcome(text="</>")
            case Gen():
                return self._gen(node, prompt)
            case Select(choices=choices):
                texts = [c if isinstance(c, str) else self._text(self._evaluate(c)) for c in choices]
                chosen = self.executor.reply(node, prompt)
                chosen = chosen if chosen in texts else texts[0]
                return Outcome(value=chosen, text=chosen, meta=Meta(finish_reason="selected"))
            case Join():
                return self._join(node)
            case ToolNode(tool=key, arguments=arguments):
                return Outcome(value=self.registry[key](**self._evaluate(arguments)))
            case Return(value=value):
                return Outcome(value=self._evaluate(value))
        return Outcome()

    def _gen(self, node: Gen, prompt: str) -> Outcome:
        for attempt in range(node.retries + 1):
            text = self.executor.reply(node, prompt)
            try:
                value = json.loads(text) if node.decode == "json" else text
                if node.validator is not None and not self.registry[node.validator](value):
                    raise ValueError("refused")
            except ValueError as error:
                if attempt == node.retries:
                    raise InvalidValueError(str(error), text=text) from error
                continue
            return Outcome(value=value, text=text, meta=Meta(attempts=attempt + 1, generated_tokens=len(text)))
        raise AssertionError

    def _join(self, node: Join) -> Outcome:
        self.executor.joins += 1
        results: list[Any] = []
        for tip, expression in zip(node.tips, node.values, strict=True):
            error = self.futures[tip].exception()
            results.append(error or (MISSING if expression is None else self._evaluate(expression)))
        for i in node.skipped:
            results[i] = CancelledError(f"branch {i} takes no part")
        failed = [i for i, r in enumerate(results) if isinstance(r, BaseException) and i not in node.skipped]
        good = [i for i, r in enumerate(results) if not isinstance(r, BaseException) and r is not MISSING]
        match node.mode:
            case "concat":
                fork_text = self.prompts[node.fork]
                return Outcome(text="".join(self.prompts[t][len(fork_text) :] for t in taking_part(node, node.tips)))
            case "settle":
                return Outcome(value=results)
            case "first":
                won = good[: node.k]
                return Outcome(value=[results[i] for i in won], winners=tuple(won))
            case "vote" | "quorum":
                value = Counter(json.dumps(results[i]) for i in good).most_common(1)[0][0]
                won = [i for i in good if json.dumps(results[i]) == value]
                return Outcome(value=results[won[0]], winners=tuple(won))
            case "best":
                won = [max(good, key=lambda i: self.registry[node.key or ""](results[i]))]
                return Outcome(value=results[won[0]], winners=tuple(won))
        if failed:
            raise JoinError(f"branch {failed[0]} failed: {results[failed[0]]}", results=results) from results[failed[0]]
        return Outcome(value=taking_part(node, results))

    def _evaluate(self, expression: Any) -> Any:
        match expression:
            case Constant(value):
                return value
            case Reference(node_id, operations):
                return apply_all(self.futures[node_id].result().value, operations)
            case ListOf(items):
                return [self._evaluate(i) for i in items]
            case DictOf(items):
                return {k: self._evaluate(i) for k, i in items}
            case Concat(parts):
                return "".join(self._text(self._evaluate(p)) for p in parts)
        raise AssertionError(expression)

    @staticmethod
    def _text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)


class FakeExecutor:
    """`script`: replies by name, used one after the other, or a function of (node, prompt); else the name and a number."""

    name = "fake"

    def __init__(
        self,
        script: dict[str, list[str]] | Reply | None = None,
        *,
        held: Sequence[str] = (),
        fail_if: str | None = None,
    ) -> None:
        self.script = script
        self.held = set(held)
        self.fail_if = fail_if
        self.runs: list[FakeRun] = []
        self.joins = 0
        self.calls: list[tuple[str | None, str]] = []
        self.opened: SimpleQueue[FakeRun] = SimpleQueue()

    def open(self, spec: RunSpec) -> FakeRun:
        run = FakeRun(self, spec)
        self.runs.append(run)
        self.opened.put(run)
        return run

    def reply(self, node: Any, prompt: str) -> str:
        self.calls.append((node.name, prompt))
        if self.fail_if is not None and self.fail_if in prompt:
            raise RuntimeError(f"the backend failed on {self.fail_if}")
        if callable(self.script):
            return self.script(node, prompt)
        if self.script and node.name in self.script:
            return self.script[node.name].pop(0)
        return f"{node.name}{len(self.calls)}"

    def meter(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.fixture
def fake() -> type[FakeExecutor]:
    return FakeExecutor
