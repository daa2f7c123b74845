"""The Executor over Targets: what `local` and `mock` hand to the frontend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

from ...errors import SpecError
from ...ir.execution import ConstraintReport, Meter, Run, RunSpec, Segment, check_models_allowed, resolve
from ...ir.nodes import Node
from ...ir.specs import Backend, ConstraintSpec
from ..interpret.preview import Previews
from ..interpret.run import InterpretedRun
from ..interpret.target import Target
from ..text.protocol import TextPiece
from ..text.seams import seam_difference

REMEMBERED_STRETCHES = 256  # the paths of one graph begin alike, and encoding is most of the work of a preview


@runtime_checkable
class HasTarget(Protocol):
    """A backend that runs can use as a named model."""

    @property
    def target(self) -> Target:
        """Its model."""


class InterpretedExecutor:
    """Implements `ir.execution.Executor` over one default Target and, per run, the named ones of its options.

    Args:
        close: releases what stands behind the target. Called once.
        share_equal: whether equal work within a run is done once.
    """

    def __init__(self, name: str, target: Target, close: Callable[[], None], *, share_equal: bool = True) -> None:
        self.name = name
        self._target = target
        self._share_equal = share_equal
        self._close: list[Callable[[], None]] = [close]
        self._checks: list[Callable[[], None]] = []

    @property
    def target(self) -> Target:
        """The default model."""
        return self._target

    def open(self, spec: RunSpec) -> Run:
        """Begin a run.

        Raises:
            BackendNotFoundError: a named model's backend does not exist.
            SpecError: a named model's backend has no model of its own.
        """
        check_models_allowed(f"opened a run of the backend {self.name!r}")
        return InterpretedRun(spec, {None: self._target, **_named(spec.options.models)}, share_equal=self._share_equal)

    def meter(self) -> Meter:
        """Facts of the default model."""
        return TargetMeter(self._target)

    def verify(self) -> None:
        """What a test wants to know at its end: raise where something prepared for it (a reply, a fault) was not used."""
        for check in self._checks:
            check()

    def also_verify(self, check: Callable[[], None]) -> None:
        """Let `verify` call `check`, too."""
        self._checks.append(check)

    def close(self) -> None:
        """Release the model. Idempotent; calls in flight fail."""
        try:
            close = self._close.pop()  # given to one thread only
        except IndexError:
            return
        close()

    def __enter__(self) -> InterpretedExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TargetMeter:
    """Implements `ir.execution.Meter` over a Target's text model."""

    def __init__(self, target: Target) -> None:
        self.model = target.info.model
        self.context_tokens = target.info.context_tokens
        self.kv_bytes_per_token = target.info.kv_bytes_per_token
        self._target = target
        encode = lru_cache(REMEMBERED_STRETCHES)(target.text.tokenizer.encode_segment)
        self._previews = Previews(target.text, encode)

    def render(self, path: Sequence[Node], values: Mapping[str, str]) -> tuple[Segment, ...]:
        """See `Meter`."""
        return self._previews.of(path, values)

    def count(self, text: str) -> int:
        """See `Meter`."""
        return len(self._target.text.tokenizer.encode(text))

    def seam(self, before: str, after: str) -> str:
        """See `Meter`."""
        found = seam_difference(self._target.text.tokenizer, [TextPiece(before)], [TextPiece(after)])
        return "" if found is None else str(found)

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """See `Meter`."""
        return self._target.audit(constraint)


def _named(models: Mapping[str, str | Backend]) -> dict[str | None, Target]:
    named: dict[str | None, Target] = {}
    for alias, backend in models.items():
        executor = resolve(backend)
        if not isinstance(executor, HasTarget):
            raise SpecError(
                f"models[{alias!r}] is the backend {executor.name!r}, which has no model of its own",
                hint="name a backend such as 'local:smollm2' or a mock",
            )
        named[alias] = executor.target
    return named
