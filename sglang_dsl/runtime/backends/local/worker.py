"""The worker of the local backend: a StepPlan of integers becomes tensors, a forward, and tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from ....errors import DslError, EngineClosedError
from ....ir.execution import TokenScore
from ....ir.specs import ConstraintSpec
from ....kernels.attention import ExtraWrite, QueryRow, SharedKeys, plan_step
from ...model.adapter import Copy, PackedTokens
from ...model.load import LoadedModel
from ...sample.sampler import ConstraintCompiler, Draw, SampledSequence, logprobs, sample, token_score
from ...schedule.step import OpenSequence, Sampled, SamplePoint, Scored, ScorePoint, StepPlan, StepResult, WorkerInfo
from ...text.tokenizer import Tokenizer


class TorchWorker:
    """One loaded model. Implements `Worker`; owned by one engine, whose thread alone calls `execute`."""

    def __init__(self, model: LoadedModel, tokenizer: Tokenizer, compiler: ConstraintCompiler, *, name: str) -> None:
        self.info = WorkerInfo(
            model=name,
            fingerprint=model.fingerprint,
            context_tokens=model.context_tokens,
            vocab_size=model.vocab_size,
            page_size=model.pool.page_size,
            num_pages=model.pool.num_pages,
            kv_bytes_per_token=model.pool.bytes_per_token,
            kv_layout=model.kv_layout,
            device=str(model.device),
            length_borders=model.positions.borders,
        )
        self._model: LoadedModel | None = model
        self._tokenizer = tokenizer
        self._compiler = compiler
        self._open: dict[int, SampledSequence | Exception] = {}

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        """Compile a constraint in a worker thread; the future raises ConstraintError. Compiled once, reused."""
        done: Future[None] = Future()
        self._compiler.compile(constraint).add_done_callback(lambda compiled: _pass_on(compiled, done))
        return done

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A fault of one row is that row's error; what this raises fails every row of the plan."""
        began = time.perf_counter()
        model = self._loaded()
        for seq_id in plan.closes:
            self._open.pop(seq_id, None)
        for opened in plan.opens:
            self._open[opened.seq_id] = self._sequence(opened)
        model.pool.copy([Copy(c.source, c.target, c.tokens) for c in plan.copies])
        samples: list[Sampled] = []
        scores: list[Scored] = []
        if plan.rows:
            points, logits = _forward(model, plan)
            samples = self._sample(logits, plan.samples, points)
            scores = [_score(logits[points[p.row, p.offset]], p) for p in plan.scores]
        return StepResult(samples, scores, time.perf_counter() - began)

    def close(self) -> None:
        """Release the model, its pool and the compiler's threads. Idempotent."""
        self._open.clear()
        self._model = None
        self._compiler.close()

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise EngineClosedError("this worker was closed", hint="open the model again")
        return self._model

    def _sequence(self, opened: OpenSequence) -> SampledSequence | Exception:
        """A sequence's sampling state; why it cannot be had is its error at its first sample."""
        try:
            matcher = None
            if opened.constraint is not None:
                matcher = self._compiler.compile(opened.constraint).result().matcher()
            sequence = SampledSequence(
                opened.sampling,
                opened.seed,
                opened.prompt_ids,
                vocab_size=self.info.vocab_size,
                end_ids=self._tokenizer.stop_ids,
                matcher=matcher,
            )
            for token_id in opened.generated:
                sequence.accept(token_id)
        except (DslError, RuntimeError, ValueError) as error:
            return error
        return sequence

    def _sample(
        self, logits: Tensor, wanted: Sequence[SamplePoint], points: dict[tuple[int, int], int]
    ) -> list[Sampled]:
        draws, places = [], []
        results: list[Sampled | None] = [None] * len(wanted)
        for i, point in enumerate(wanted):
            sequence = self._open[point.seq_id]
            if isinstance(sequence, Exception):
                results[i] = Sampled(point.seq_id, -1, error=sequence)
                continue
            draws.append(Draw(points[point.row, point.offset], sequence, point.generated))
            places.append(i)
        tokens = sample(logits, draws) if draws else []
        for i, drawn, token in zip(places, draws, tokens, strict=True):
            results[i] = self._accepted(wanted[i].seq_id, drawn, token, logits)
        return [r for r in results if r is not None]

    def _accepted(self, seq_id: int, drawn: Draw, token: int | Exception, logits: Tensor) -> Sampled:
        if isinstance(token, Exception):
            return Sampled(seq_id, -1, error=token)
        try:
            score = _token_score(drawn, token, logits, self._tokenizer.token_bytes)
            ended = drawn.sequence.accept(token)
        except (DslError, RuntimeError, ValueError) as error:
            return Sampled(seq_id, -1, error=error)
        return Sampled(seq_id, token, ended, score)


def _forward(model: LoadedModel, plan: StepPlan) -> tuple[dict[tuple[int, int], int], Tensor]:
    """Compute all rows. Where each (row, offset) stands in the logits, and the logits [points, V]."""
    attention = plan_step(
        [QueryRow(len(r.token_ids), r.start, r.pages, r.own_start) for r in plan.rows],
        [SharedKeys(*group) for level in plan.levels for group in level],
        [ExtraWrite(*mirror) for mirror in plan.mirrors],
        page_size=model.pool.page_size,
        device=model.device,
    )
    firsts = attention.first_tokens()
    places = dict.fromkeys([(p.row, p.offset) for p in plan.samples] + [(p.row, p.offset) for p in plan.scores])
    wanted = torch.tensor([firsts[row] + offset for row, offset in places], dtype=torch.long)
    token_ids = torch.tensor([i for r in plan.rows for i in r.token_ids], dtype=torch.long)
    positions = torch.cat([torch.arange(r.start, r.start + len(r.token_ids)) for r in plan.rows])
    lengths = model.positions.lengths_of(
        [r.band for r in plan.rows], [len(r.token_ids) for r in plan.rows], model.device
    )
    tokens = PackedTokens(token_ids.to(model.device), positions.to(model.device), lengths)
    logits = model.packed.forward(tokens, attention, wanted.to(model.device))
    return {place: i for i, place in enumerate(places)}, logits


def _token_score(drawn: Draw, token_id: int, logits: Tensor, token_bytes: Callable[[int], bytes]) -> TokenScore | None:
    """Before the sequence has accepted the token."""
    top = drawn.sequence.spec.logprobs
    if top is None:
        return None
    return token_score(logits[drawn.row], token_id, top, token_bytes, drawn.sequence.matcher)


def _score(logits: Tensor, point: ScorePoint) -> Scored:
    chosen, top = logprobs(logits, point.token_ids, point.top)
    return Scored(point.key, chosen, top)


def _pass_on(compiled: Future[Any], done: Future[None]) -> None:
    """`done` ends as `compiled` did, without its value."""
    if compiled.cancelled():
        done.set_exception(EngineClosedError("this worker was closed before the constraint was compiled"))
        return
    error = compiled.exception()
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)
