"""The Target protocol: what the interpreter needs of a model, be it an engine in this process or a server.

A Target in front of another: what passes it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...ir.execution import ConstraintReport
from ...ir.specs import ConstraintSpec
from ..cache.keys import Namespace
from ..schedule.request import LeaseId, Request, Sink, TargetInfo
from ..text.tokenizer import TextModel


class Target(Protocol):
    """One model. All methods may be called from any thread and never wait for the model."""

    info: TargetInfo
    text: TextModel

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Queue requests; those of one call are admitted together where they fit. Errors arrive at each Sink.

        Raises:
            EngineClosedError: nothing was queued.
        """

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """End these requests wherever they stand, exactly once each; their sinks get CancelledError. Unknown or ended
        ids are ignored. No token of theirs is computed in a step launched after this returns has been seen by the loop.
        """

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> LeaseId:
        """Keep the state of `prompt_ids` until `children` requests that name the lease were admitted or ended, or `release`."""

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """So many children will not come (None: end the lease). Idempotent after the end."""

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Findings and forced tokens. Raises ConstraintError. Also starts compiling it in the background."""

    def now(self) -> float:
        """Seconds on the engine's clock."""


class ForwardingTarget:
    """Implements `Target` but for `submit`, which is what its subclasses are for."""

    def __init__(self, behind: Target) -> None:
        self._behind = behind
        self.info: TargetInfo = behind.info
        self.text: TextModel = behind.text
        self.now = behind.now  # not a method: a clock is read often

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """End these requests wherever they stand, exactly once each; their sinks get CancelledError."""
        self._behind.cancel(request_ids, reason)

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> LeaseId:
        """Keep the state of `prompt_ids` until `children` requests that name the lease were admitted or ended, or `release`."""
        return self._behind.lease(prompt_ids, namespace, children)

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """So many children will not come (None: end the lease). Idempotent after the end."""
        self._behind.release(lease, children)

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Findings and forced tokens. Raises ConstraintError. Also starts compiling it in the background."""
        return self._behind.audit(constraint)
