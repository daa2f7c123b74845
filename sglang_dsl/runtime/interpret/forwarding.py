"""A Target in front of another: what passes it unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.execution import ConstraintReport
from ...ir.specs import ConstraintSpec
from ..cache.namespace import Namespace
from ..schedule.request import LeaseId
from ..text.protocol import TextModel
from .target import Target, TargetInfo


class ForwardingTarget:
    """Implements `Target` but for `submit`, which is what its subclasses are for."""

    def __init__(self, behind: Target) -> None:
        self._behind = behind
        self.info: TargetInfo = behind.info
        self.text: TextModel = behind.text

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """See `Target`."""
        self._behind.cancel(request_ids, reason)

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> LeaseId:
        """See `Target`."""
        return self._behind.lease(prompt_ids, namespace, children)

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """See `Target`."""
        self._behind.release(lease, children)

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """See `Target`."""
        return self._behind.audit(constraint)

    def now(self) -> float:
        """See `Target`."""
        return self._behind.now()
