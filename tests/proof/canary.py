"""A worker around a worker that knows what every slot holds, and looks before each forward.

A slot remembers its token, its position and its predecessor: the digest of the slot before it, as the row that wrote it saw
it. The digests form a chain, so a slot is right only if everything before it is what it was when it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.schedule.step import Row, StepPlan, StepResult, Worker

Fault = Callable[[StepPlan], StepPlan | None]


class CanaryError(AssertionError):
    """A row would read something else than it relies on."""


class Slot(NamedTuple):
    token_id: int
    position: int
    before: int

    @property
    def digest(self) -> int:
        return hash(self)


class CanaryWorker:
    """Implements `Worker`. `plant` may change a plan on its way to the model; it returns None for the steps it leaves alone."""

    def __init__(self, model: Worker) -> None:
        self.info = model.info
        self.plant: Fault = lambda plan: None
        self.planted = 0
        self.found: list[str] = []
        self.forwards = 0
        self.slots_checked = 0
        self.plans: list[StepPlan] = []
        self._model = model
        self._slots: dict[tuple[int, int], Slot] = {}
        self._known: dict[int, list[int]] = {}

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        return self._model.prepare(constraint)

    def execute(self, plan: StepPlan) -> StepResult:
        changed = self.plant(plan)
        self.planted += changed is not None
        try:
            self._look(changed or plan)
        except CanaryError as error:
            self.found.append(str(error))
            raise
        self.forwards += bool(plan.rows)
        self.plans.append(plan)
        result = self._model.execute(changed or plan)
        for sampled in result.samples:
            if sampled.error is None:
                self._known[sampled.seq_id].append(sampled.token_id)
        return result

    def close(self) -> None:
        self._model.close()

    def _look(self, plan: StepPlan) -> None:
        for seq_id in plan.closes:
            self._known.pop(seq_id, None)
        for opened in plan.opens:
            self._known[opened.seq_id] = [*opened.prompt_ids, *opened.generated]
        self._copy(plan)
        self._write(plan)
        for row in plan.rows:
            self._check_row(row)
        self._check_levels(plan)
        self._check_samples(plan)

    def _copy(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            for offset in range(copy.tokens):
                self._slots[copy.target, offset] = self._at(copy.source, offset)

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        for number, row in enumerate(plan.rows):  # what a row reads stands before it, or was there
            before = self._before(row.pages, row.start)
            for position, token_id in enumerate(row.token_ids, row.start):
                slot = Slot(token_id, position, before)
                self._put(written, self._place(row.pages, position), slot)
                before = slot.digest
            for mirror in plan.mirrors:
                if mirror.row == number:
                    self._put(written, (mirror.page, mirror.offset), self._at(*self._place(row.pages, mirror.position)))

    def _put(self, written: set[tuple[int, int]], place: tuple[int, int], slot: Slot) -> None:
        if place in written:
            raise CanaryError(f"slot {place} is written twice in a step")
        written.add(place)
        self._slots[place] = slot

    def _check_row(self, row: Row) -> None:
        known = self._known.get(row.seq_id, ())  # edges of a trie have no sequence: their chain is checked alone
        before = 0
        for position in range(row.start + len(row.token_ids)):
            slot = self._at(*self._place(row.pages, position))
            if slot.position != position:
                raise CanaryError(f"sequence {row.seq_id} at {position} reads position {slot.position}")
            if position < len(known) and slot.token_id != known[position]:
                raise CanaryError(
                    f"sequence {row.seq_id} at {position} reads token {slot.token_id}, not {known[position]}"
                )
            if slot.before != before:
                raise CanaryError(f"sequence {row.seq_id} at {position} reads a slot computed after something else")
            before = slot.digest
        self.slots_checked += row.start + len(row.token_ids)

    def _check_levels(self, plan: StepPlan) -> None:
        size = self.info.page_size
        for group in (group for level in plan.levels for group in level):
            span = slice(group.start // size, group.end // size)
            rows = plan.rows[group.first_row : group.end_row]
            if any(list(row.pages[span]) != list(rows[0].pages[span]) for row in rows):
                raise CanaryError(f"rows of {group} read different pages")

    def _check_samples(self, plan: StepPlan) -> None:
        for point in plan.samples:
            row = plan.rows[point.row]
            read = [self._at(*self._place(row.pages, p)).token_id for p in range(row.start + point.offset + 1)]
            if read != self._known[point.seq_id]:
                raise CanaryError(f"sequence {point.seq_id} is sampled from somewhere else than its end")

    def _before(self, pages: Sequence[int], position: int) -> int:
        return self._at(*self._place(pages, position - 1)).digest if position else 0

    def _place(self, pages: Sequence[int], position: int) -> tuple[int, int]:
        return pages[position // self.info.page_size], position % self.info.page_size

    def _at(self, page: int, offset: int) -> Slot:
        try:
            return self._slots[page, offset]
        except KeyError:
            raise CanaryError(f"slot {(page, offset)} was never written") from None
