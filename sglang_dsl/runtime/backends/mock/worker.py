"""The scripted model: a Worker without tensors, with real pages, real constraints and time from a cost model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ....errors import IntegrityError
from ....ir.execution import TokenScore
from ....ir.specs import ConstraintSpec
from ...cache.keys import AlikeIds, alike
from ...constrain.compile import compile_constraint
from ...engine.worker import WorkerInfo
from ...schedule.request import Label, Request
from ...schedule.step import OpenSequence, Sampled, SamplePoint, Scored, ScorePoint, StepPlan, StepResult
from .model import SCORED_CONTEXT, token_logprob
from .pages import TokenPages
from .playing import Playing
from .reply import Piece, Reply
from .text import MockTokenizer

LOOKED_BACK_TOKENS = 4 * SCORED_CONTEXT + 4  # hold as many characters as the little language model looks at

LanguageModel = Callable[[str, str], float]  # (text so far, text of the next token) -> natural-log probability


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Virtual seconds of a step: so much for itself, and for each prompt token and each sampled token."""

    step_s: float = 0.01
    prompt_token_s: float = 0.0
    sampled_token_s: float = 0.0

    def seconds(self, plan: StepPlan) -> float:
        """What `plan` takes."""
        sampled = len(plan.samples)
        tokens = sum(len(row.token_ids) for row in plan.rows)
        return self.step_s + self.prompt_token_s * max(tokens - sampled, 0) + self.sampled_token_s * sampled


class MockWorker:
    """Plays the replies it was assigned, token by token.

    Every row is read back through its page table: a row that would see other tokens than its own prompt fails the step. What was read
    back for the prompt that this one continues, over the same pages, is not read again until one of them is written.
    """

    def __init__(
        self,
        info: WorkerInfo,
        tokenizer: MockTokenizer,
        *,
        cost: CostModel,
        language_model: LanguageModel,
        masked: bool,
    ) -> None:
        self.info = info
        self._tokenizer = tokenizer
        self._cost = cost
        self._language_model = language_model
        self._masked = masked
        self._pages = TokenPages(info.page_size)
        self._assigned: dict[tuple[Label, AlikeIds], deque[Reply]] = {}
        self._playing: dict[int, Playing] = {}
        self._lock = threading.Lock()

    def assign(self, request: Request, reply: Reply) -> None:
        """What this request will be answered, once it runs. Any thread."""
        with self._lock:
            self._assigned.setdefault(_key(request.label, request.prompt_ids), deque()).append(reply)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        key = _key(request.label, request.prompt_ids)
        with self._lock:
            if replies := self._assigned.get(key):
                replies.popleft()
                if not replies:
                    del self._assigned[key]

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        """See `Worker`: at once, on the caller's thread."""
        future: Future[None] = Future()
        compile_constraint(constraint)
        future.set_result(None)
        return future

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Worker`."""
        for seq_id in plan.closes:
            self._playing.pop(seq_id, None)
        for opened in plan.opens:
            self._playing[opened.seq_id] = self._open(opened)
        self._pages.write(plan)
        self._check_rows(plan)
        samples = [self._sample(point) for point in plan.samples]
        scores = [self._score(plan, point) for point in plan.scores]
        return StepResult(samples, scores, self._cost.seconds(plan))

    def close(self) -> None:
        """Nothing to release."""

    def _open(self, opened: OpenSequence) -> Playing:
        with self._lock:
            replies = self._assigned.get(_key(opened.label, opened.prompt_ids))
            reply = replies[0] if replies else Reply()
        playing = Playing(opened, reply, self._tokenizer, masked=self._masked)
        for token_id in opened.generated:
            playing.replay(token_id)
        return playing

    def _check_rows(self, plan: StepPlan) -> None:
        """A sequence's first row and its long ones are read back whole; in steady decoding the last token is enough."""
        for row in plan.rows:
            playing = self._playing.get(row.seq_id)
            end = row.start + len(row.token_ids)
            if playing is None or end > len(playing.tokens_so_far):
                continue
            whole = len(row.token_ids) > 1 or not playing.generated
            prompt_ids = playing.opened.prompt_ids
            start = self._pages.sound_until(row, prompt_ids) if whole else row.start
            if self._pages.read(row, start, end) != playing.tokens_so_far[start:end]:
                raise IntegrityError(f"sequence {row.seq_id} reads pages that hold another prompt")
            if whole:
                self._pages.note_sound(row, prompt_ids, start)

    def _sample(self, point: SamplePoint) -> Sampled:
        playing = self._playing[point.seq_id]
        try:
            token_id, piece, ended = playing.next(point.generated)
        except Exception as error:  # noqa: BLE001 - an error the script asked for: it is this row's alone
            return Sampled(point.seq_id, -1, error=error)
        score = self._token_score(token_id, piece) if playing.opened.sampling.logprobs is not None else None
        return Sampled(point.seq_id, token_id, ended, score)

    def _token_score(self, token_id: int, piece: Piece) -> TokenScore:
        top = tuple((self._tokenizer.intern(raw), logprob, _raw(raw)) for raw, logprob in piece.top)
        return TokenScore(
            token_id=token_id, logprob=piece.logprob, token_bytes=self._tokenizer.token_bytes(token_id), top=top
        )

    def _score(self, plan: StepPlan, point: ScorePoint) -> Scored:
        row = plan.rows[point.row]
        end = row.start + point.offset + 1
        first = max(0, end - LOOKED_BACK_TOKENS) if self._language_model is token_logprob else 0
        before = self._tokenizer.show(self._pages.read(row, first, end))
        return Scored(point.key, [self._language_model(before, self._tokenizer.show([t])) for t in point.token_ids])


def _raw(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


def _key(label: Label, prompt_ids: Sequence[int]) -> tuple[Label, AlikeIds]:
    """A request is known by who asks and what."""
    return label, alike(prompt_ids)
