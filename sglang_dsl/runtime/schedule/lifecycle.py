"""Every sequence and where it stands. What ends, ends here, once.

waiting <--> compiling
   |  ^
   v  | retract
prefilling --> decoding        each of them --> end (finished, cancelled, failed)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..cache.keys import pack
from ..cache.prefix_cache import PrefixCache
from .ownership import Ownership
from .request import GenerateRequest
from .sequence import Sequence
from .step_builder import Arrangement


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    accessed_tokens: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    admitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    retracted: int = 0
    preempted: int = 0
    allocation_failures: int = 0


class Lifecycle:
    """The sequences of one scheduler by phase, oldest first."""

    def __init__(self, cache: PrefixCache, ownership: Ownership) -> None:
        self.waiting: dict[int, Sequence] = {}
        self.compiling: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self.decoding: dict[int, Sequence] = {}
        self.by_request: dict[str, Sequence] = {}
        self.by_id: dict[int, Sequence] = {}
        self.counters = Counters()
        self.changes = 0  # grows whenever admission may go differently than before
        self.arrangement: Arrangement | None = None
        self._cache = cache
        self._ownership = ownership
        self._opened: set[int] = set()
        self._closes: list[int] = []

    @property
    def running(self) -> int:
        """Sequences that hold memory."""
        return len(self.prefilling) + len(self.decoding)

    def enter(self, seq: Sequence, *, compiling: bool) -> None:
        """A new request."""
        self.by_request[seq.request_id] = self.by_id[seq.seq_id] = seq
        seq.phase = "compiling" if compiling else "waiting"
        (self.compiling if compiling else self.waiting)[seq.seq_id] = seq
        self.changes += 1

    def compiled(self, seq: Sequence) -> None:
        """Its constraint is ready."""
        if self.compiling.pop(seq.seq_id, None) is not None:
            seq.phase = "waiting"
            self.waiting[seq.seq_id] = seq
            self.changes += 1

    def admit(self, seq: Sequence, now: float) -> None:
        """It holds its prefix and its first pages."""
        del self.waiting[seq.seq_id]
        seq.phase = "prefill"
        self.prefilling[seq.seq_id] = seq
        if isinstance(seq.request, GenerateRequest):
            self._opened.add(seq.seq_id)
        if seq.admitted_s is None:
            self._first_admission(seq, now)

    def decode(self, seq: Sequence) -> None:
        """Its prompt is computed and its next token sampled."""
        del self.prefilling[seq.seq_id]
        seq.phase = "decode"
        self.decoding[seq.seq_id] = seq
        self.arrangement = None

    def retract(self, seq: Sequence) -> None:
        """Give up its memory for now; it goes back to the head of the queue and keeps its tokens."""
        self._requeue(seq)
        self.counters.retracted += 1

    def move(self, seq: Sequence, band: int) -> None:
        """It has grown into another band of lengths: all of it is computed anew, next."""
        self._requeue(seq)
        seq.place(band)

    def _requeue(self, seq: Sequence) -> None:
        self._leave(seq)
        self._ownership.release(seq, len(seq.tokens))
        seq.key = pack(seq.tokens)
        if seq.task is not None:
            seq.task.restart()
        seq.phase = "waiting"
        self.waiting = {seq.seq_id: seq, **self.waiting}

    def end(self, seq: Sequence, keep_tokens: int) -> None:
        """Release everything, once; computed tokens up to `keep_tokens` stay in the tree."""
        if self.by_id.pop(seq.seq_id, None) is None:
            return
        if self.by_request.get(seq.request_id) is seq:
            del self.by_request[seq.request_id]
        self._leave(seq)
        self._ownership.release(seq, keep_tokens)
        seq.phase = "done"
        if seq.admitted_s is None:
            self._count_down(seq)

    def close_again(self, seq_ids: Iterable[int]) -> None:
        """The worker failed in the step that was to close these, perhaps before it did."""
        self._closes.extend(seq_ids)

    def take_closes(self) -> tuple[int, ...]:
        """Sequences the worker may forget, since the last call. It need not know them all."""
        closes = tuple(self._closes)
        self._closes.clear()
        return closes

    def _first_admission(self, seq: Sequence, now: float) -> None:
        seq.admitted_s = now
        self.counters.admitted += 1
        self.counters.accessed_tokens += seq.prompt_tokens
        self.counters.hit_tokens += seq.cached_tokens
        self._count_down(seq)

    def _count_down(self, seq: Sequence) -> None:
        if seq.request.lease is not None:
            self._cache.leases.count_down(seq.request.lease)

    def _leave(self, seq: Sequence) -> None:
        if self.decoding.pop(seq.seq_id, None) is not None:
            self.arrangement = None
        for phase in (self.prefilling, self.waiting, self.compiling):
            phase.pop(seq.seq_id, None)
        if seq.seq_id in self._opened:
            self._opened.remove(seq.seq_id)
            self._closes.append(seq.seq_id)
        self.changes += 1
