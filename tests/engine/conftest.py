"""A scripted model and receivers for the engine's tests. Every step checks its pages: each slot knows what it holds."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from sglang_dsl.errors import SamplingError
from sglang_dsl.ir.execution import TokenScore
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.engine.metrics import Clock, VirtualClock
from sglang_dsl.runtime.schedule.request import GenerateRequest, Request, Result
from sglang_dsl.runtime.schedule.step import (
    OpenSequence,
    Row,
    Sampled,
    SamplePoint,
    Scored,
    StepPlan,
    StepResult,
    WorkerInfo,
)
from sglang_dsl.runtime.text.tokenizer import PieceTokenizer

Piece = str | bytes | int


class PieceText:
    def __init__(self, vocab_size: int = 4096) -> None:
        self.tokenizer = PieceTokenizer(vocab_size=vocab_size)
        self.template = None


class ScriptedWorker:
    """Answers each prompt (by its text) with the pieces of its script, then the end of text; unknown ones with `default`."""

    def __init__(
        self,
        text: PieceText,
        replies: Mapping[str, Sequence[Piece]] | None = None,
        *,
        default: Sequence[Piece] = ("a", "b", "c"),
        num_pages: int = 1024,
        page_size: int = 1,
        context_tokens: int = 1024,
        step_s: float = 0.01,
    ) -> None:
        self.tokenizer = text.tokenizer
        self.info = WorkerInfo(
            model="scripted",
            fingerprint="scripted",
            context_tokens=context_tokens,
            vocab_size=text.tokenizer.vocab_size,
            page_size=page_size,
            num_pages=num_pages,
            kv_bytes_per_token=1,
            kv_layout="canary",
        )
        self.replies = dict(replies or {})
        self.default = default
        self.step_s = step_s
        self.steps: list[StepPlan] = []
        self.raise_at: dict[int, Exception] = {}
        self.row_errors: dict[str, Exception] = {}
        self.compiling: dict[str, Future[None]] = {}
        self.during_step: Callable[[int], None] = lambda step: None
        self.on_thread: set[str] = set()
        self.closed = 0
        self._open: dict[int, OpenSequence] = {}
        self._tokens: dict[int, list[int]] = {}
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        return self.compiling.get(constraint.text) or _done()

    def execute(self, plan: StepPlan) -> StepResult:
        self.on_thread.add(threading.current_thread().name)
        number = len(self.steps)
        self.steps.append(plan)
        self.during_step(number)
        if number in self.raise_at:
            raise self.raise_at[number]
        for seq_id in plan.closes:
            self._open.pop(seq_id, None)
        for opened in plan.opens:
            self._open[opened.seq_id] = opened
            self._tokens[opened.seq_id] = [*opened.prompt_ids, *opened.generated]
        self._fill_pages(plan)
        samples = [self._sample(point) for point in plan.samples]
        scores = [Scored(p.key, tuple(-0.5 - (t % 7) / 10 for t in p.token_ids), ()) for p in plan.scores]
        return StepResult(samples, scores, self.step_s)

    def close(self) -> None:
        self.closed += 1

    def script(self, opened: OpenSequence) -> list[int]:
        pieces = self.replies.get(self.tokenizer.decode(opened.prompt_ids), self.default)
        ids = [p if isinstance(p, int) else self.tokenizer.intern(p) for p in pieces]
        return [*ids, self.tokenizer.eos_id]

    def _sample(self, point: SamplePoint) -> Sampled:
        opened = self._open[point.seq_id]
        prompt = self.tokenizer.decode(opened.prompt_ids)
        if prompt in self.row_errors:
            return Sampled(point.seq_id, -1, error=self.row_errors[prompt])
        script = self.script(opened)
        if point.generated >= len(script):
            return Sampled(point.seq_id, -1, error=SamplingError("the script is over"))
        token_id = script[point.generated]
        self._tokens[point.seq_id].append(token_id)
        ended = opened.constraint is not None and point.generated == len(script) - 2
        score = TokenScore(token_id=token_id, logprob=-0.25) if opened.sampling.logprobs is not None else None
        return Sampled(point.seq_id, token_id, ended, score)

    def _fill_pages(self, plan: StepPlan) -> None:
        size = self.info.page_size
        for copy in plan.copies:
            for offset in range(copy.tokens):
                self._slots[copy.target, offset] = self._slots[copy.source, offset]
        for row in plan.rows:
            for position, token_id in enumerate(row.token_ids, row.start):
                self._slots[row.pages[position // size], position % size] = (position, token_id)
        for write in plan.mirrors:
            row = plan.rows[write.row]
            self._slots[write.page, write.offset] = (write.position, row.token_ids[write.position - row.start])
        for row in plan.rows:
            self._check_canary(row, size)
        for group in (group for level in plan.levels for group in level):
            shared = {
                tuple(row.pages[group.start // size : group.end // size])
                for row in plan.rows[group.first_row : group.end_row]
            }
            assert len(shared) == 1, "rows of a group read different pages"

    def _check_canary(self, row: Row, size: int) -> None:
        known = self._tokens.get(row.seq_id)
        if row.seq_id not in self._open or known is None:
            return
        end = row.start + len(row.token_ids)
        held = [self._slots.get((row.pages[p // size], p % size)) for p in range(end)]
        assert held == list(enumerate(known[:end])), f"row of sequence {row.seq_id} reads foreign pages"


class PageWorker(ScriptedWorker):
    """A model whose next token is a function of all tokens it reads through its pages: a wrong page is a wrong answer."""

    LETTERS = 24

    @classmethod
    def next_token(cls, token_ids: Sequence[int]) -> int:
        digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=4).digest()
        return ord("a") + int.from_bytes(digest, "little") % cls.LETTERS

    @classmethod
    def alone(cls, prompt_ids: Sequence[int], tokens: int) -> list[int]:
        """What a request generates that has the model to itself."""
        held = list(prompt_ids)
        for _ in range(tokens):
            held.append(cls.next_token(held))
        return held[len(prompt_ids) :]

    def execute(self, plan: StepPlan) -> StepResult:
        self._plan = plan
        return super().execute(plan)

    def _sample(self, point: SamplePoint) -> Sampled:
        row = self._plan.rows[point.row]
        size = self.info.page_size
        read = [self._slots[row.pages[p // size], p % size] for p in range(row.start + point.offset + 1)]
        assert [position for position, _ in read] == list(range(len(read)))
        token_id = self.next_token([token for _, token in read])
        self._tokens[point.seq_id].append(token_id)
        return Sampled(point.seq_id, token_id)


class Recorder:
    """A Sink that remembers, and lets a test wait for the end."""

    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.token_ids: list[int] = []
        self.starts = 0
        self.ends: list[Result | Exception] = []
        self.late: list[str] = []
        self.ended = threading.Event()

    def started(self) -> None:
        self.starts += 1
        self._note_late("started")

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        self._note_late("text")
        self.deltas.append(delta)
        self.token_ids.extend(token_ids)

    def done(self, result: Result | Exception) -> None:
        self._note_late("done")
        self.ends.append(result)
        self.ended.set()

    @property
    def end(self) -> Result | Exception:
        assert self.ended.wait(20), "the request did not end"
        return self.ends[0]

    def _note_late(self, what: str) -> None:
        if self.ends:
            self.late.append(what)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


class Lab:
    """One scripted model and its engine. `stepped` engines have no thread: `turn` moves them."""

    def __init__(self) -> None:
        self.text = PieceText()
        self.engines: list[Engine] = []
        self.worker = ScriptedWorker(self.text)

    def engine(
        self,
        replies: Mapping[str, Sequence[Piece]] | None = None,
        *,
        stepped: bool = True,
        clock: Clock | None = None,
        config: EngineConfig | None = None,
        model: type[ScriptedWorker] = ScriptedWorker,
        **facts: Any,
    ) -> Engine:
        self.worker = model(self.text, replies, **facts)
        engine = Engine(
            self.worker,
            self.text,
            config=config or EngineConfig(check_integrity=True, idle_check_after_s=0.0),
            clock=clock or VirtualClock(),
            background=not stepped,
        )
        self.engines.append(engine)
        return engine

    def request(
        self, request_id: str, prompt: str = "p", *, lease: int | None = None, **sampling: Any
    ) -> GenerateRequest:
        constraint = sampling.pop("constraint", None)
        extra = {key: sampling.pop(key) for key in ("deadline_s", "no_cache", "priority") if key in sampling}
        return GenerateRequest(
            request_id=request_id,
            prompt_ids=self.ids(prompt),
            sampling=SamplingSpec(**{"temperature": 0, "max_tokens": 32, **sampling}),
            constraint=constraint,
            lease=lease,
            namespace=self.engines[-1].info.namespace,
            **extra,
        )

    def submit(self, *requests: Request) -> list[Recorder]:
        recorders = [Recorder() for _ in requests]
        self.engines[-1].submit(list(zip(requests, recorders, strict=True)))
        return recorders

    def ids(self, text: str) -> list[int]:
        return self.text.tokenizer.encode(text)

    def settle(self, limit: int = 10_000) -> int:
        """Turn until there is nothing to do; how many turns did something."""
        for turns in range(limit):
            if not self.engines[-1].turn():
                return turns
        raise AssertionError("the engine does not come to rest")

    def assert_clean(self) -> None:
        """Nothing lives, no page is held but by the cache, and the books balance."""
        engine = self.engines[-1]
        engine.check()
        snapshot = engine.snapshot()
        pages = snapshot.scheduler
        assert snapshot.live == 0
        assert snapshot.submitted == snapshot.ended
        assert pages.free_pages + pages.evictable_pages == pages.total_pages


@pytest.fixture
def page_model() -> type[PageWorker]:
    return PageWorker


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    for engine in lab.engines:
        engine.close()
