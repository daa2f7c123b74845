"""What a step's result changes: computed tokens, the tree, sampled tokens, scores; and what is reported of it."""

from __future__ import annotations

from collections.abc import Sequence as Many

from ...ir.execution import TokenScore
from ..cache.prefix_cache import PrefixCache
from .config import WorkerFacts
from .lifecycle import Lifecycle
from .ownership import Ownership
from .progress import Progress
from .sequence import Piece, Sequence
from .step import Sampled, Scored, StepResult
from .step_builder import Asked, Flight


class Landing:
    """Applies results for one scheduler."""

    def __init__(self, cache: PrefixCache, ownership: Ownership, lifecycle: Lifecycle, facts: WorkerFacts) -> None:
        self._facts = facts
        self._cache = cache
        self._ownership = ownership
        self._life = lifecycle

    def commit(self, flight: Flight, result: StepResult) -> list[Progress]:
        """The worker has computed `flight`."""
        out: list[Progress] = []
        for seq in flight.decodes:
            seq.computed += 1
        if flight.pieces:
            self._land_pieces(flight, result.scores, out)
        self._samples(result.samples, out)
        if flight.pieces:
            self._finish_tasks(flight.pieces, out)
        return out

    def abort(self, flight: Flight, error: Exception) -> list[Progress]:
        """The worker raised: every sequence of the step fails, nothing it was to compute is kept."""
        members = [self._life.by_id[seq_id] for seq_id in sorted(flight.members())]
        out = [
            Progress(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens)
            for seq in members
            if seq.ending is None
        ]
        for seq in members:
            self._life.end(seq, seq.prompt_tokens)
        self._life.close_again(flight.plan.closes)
        self._ownership.return_borrowed()
        self._cache.tree.drop_pending()
        self._life.counters.failed += len(out)
        return out

    # Prompts and edges

    def _land_pieces(self, flight: Flight, scores: Many[Scored], out: list[Progress]) -> None:
        self._cache.commit_pending()
        for piece in flight.pieces:
            self._land(piece, out)
        self._ownership.return_borrowed()
        self._cache.leases.follow()
        for scored in scores:
            _note(flight.asked[scored.key], scored)

    def _land(self, piece: Piece, out: list[Progress]) -> None:
        seq = piece.seq
        if piece.edge is not None and seq.task is not None:
            self._cache.pool.free(seq.task.land(piece.edge))
        else:
            seq.computed = piece.end
            self._ownership.settle(seq)
        self._announce(seq, out)
        for taker in piece.takers:
            taker.computed = piece.end
            self._announce(taker, out)
            self._life.decode(taker)

    def _announce(self, seq: Sequence, out: list[Progress]) -> None:
        if not seq.announced and seq.ending is None:
            seq.announced = True
            out.append(_counted(Progress(seq.request_id, "admitted", admitted_s=seq.admitted_s), seq))

    def _finish_tasks(self, pieces: list[Piece], out: list[Progress]) -> None:
        for seq in {piece.seq.seq_id: piece.seq for piece in pieces if piece.seq.task}.values():
            if seq.task is not None and seq.ending is None and seq.computed == len(seq.tokens) and seq.task.done:
                progress = Progress(seq.request_id, "scored", scored=seq.task.answer())
                out.append(_counted(progress, seq))
                self._life.end(seq, seq.prompt_tokens)
                self._life.counters.finished += 1

    # Tokens

    def _samples(self, samples: Many[Sampled], out: list[Progress]) -> None:
        by_id, counters = self._life.by_id, self._life.counters
        for seq_id, token_id, ended, score, error in samples:
            seq = by_id[seq_id]
            if seq.ending is not None:
                continue
            if error is not None:
                out.append(Progress(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens))
                self._life.end(seq, seq.prompt_tokens)
                counters.failed += 1
                continue
            seq.tokens.append(token_id)
            counters.generated_tokens += 1
            if seq.prompt_scores is None:
                out.append(Progress(seq.request_id, "token", token_id, ended, score))
            else:
                out.append(
                    Progress(seq.request_id, "token", token_id, ended, score, prompt_scores=tuple(seq.prompt_scores))
                )
                seq.prompt_scores = None
            band = self._facts.band_of(len(seq.tokens))
            if band != seq.band and seq.max_new:
                self._life.move(seq, band)


def _counted(progress: Progress, seq: Sequence) -> Progress:
    """With the counts of the request's prompt: of its first admission, whatever was retracted and computed again."""
    return progress._replace(
        prompt_tokens=seq.prompt_tokens,
        cached_tokens=seq.cached_tokens,
        computed_tokens=seq.prompt_tokens - seq.cached_tokens,
        spent_tokens=seq.spent_tokens,
    )


def _note(asked: Asked, scored: Scored) -> None:
    """Keep a score where it belongs: at a trie node's children, or at a position of the prompt."""
    if asked.node is not None:
        for child, logprob in zip(asked.node.children.values(), scored.logprobs, strict=True):
            child.logprob = logprob
        return
    seq = asked.seq
    if seq.prompt_scores is None:
        seq.prompt_scores = [None] * seq.prompt_tokens
    top = tuple((token_id, logprob, b"") for token_id, logprob in scored.top)
    seq.prompt_scores[asked.position] = TokenScore(
        token_id=seq.tokens[asked.position], logprob=scored.logprobs[0], top=top
    )
