"""The Worker protocol: what turns a StepPlan into a StepResult."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ...ir.specs import ConstraintSpec
from ..schedule.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Facts of the model behind a worker. num_pages counts usable pages (ids 0..num_pages-1).

    length_borders: lengths past which the model computes a whole sequence otherwise, ascending: see `Row.band`.
    """

    model: str
    fingerprint: str
    context_tokens: int
    vocab_size: int
    page_size: int
    num_pages: int
    kv_bytes_per_token: int
    kv_layout: str
    device: str = "cpu"
    weight_version: str = "0"
    length_borders: Sequence[int] = ()


class Worker(Protocol):
    """Owned by one engine; `execute` is called from the engine's thread only."""

    info: WorkerInfo

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        """Compile a constraint, off the engine's thread; the future raises ConstraintError. Compiled once, reused."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A fault of one row is that row's `Sampled.error`; what this raises fails every row of the plan."""

    def close(self) -> None:
        """Release memory and threads. Idempotent."""
