"""What a run leaves behind."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...ir.graph import Graph
from ...ir.record import RunRecord, plain_options
from .machine import Machine

PACKAGE = "sglang-dsl"


def record_of(machine: Machine) -> RunRecord:
    """The record of a run as far as it has come. Nodes of sub-graphs are in outcomes and errors under their run ids."""
    entries = machine.entries.values()
    return RunRecord(
        program=machine.spec.program,
        seed=machine.seed,
        graph=Graph((e.node for e in entries if e.scope is machine.root), name=machine.spec.program).freeze(),
        outcomes={entry.id: entry.outcome for entry in entries if entry.outcome is not None},
        errors={entry.id: entry.error for entry in entries if entry.error is not None},
        usage=machine.tally.usage(machine.now()),
        error=machine.error,
        options=plain_options(machine.spec.options),
        versions=_versions(machine),
    )


def _versions(machine: Machine) -> dict[str, str]:
    """Of this package, and of the weights of each model that was called."""
    metas = (e.outcome.meta for e in machine.entries.values() if e.outcome is not None and e.outcome.meta is not None)
    weights = {meta.model: meta.weight_version for meta in metas if meta.model}
    try:
        return {PACKAGE: version(PACKAGE), **weights}
    except PackageNotFoundError:  # run from a source tree that is not installed
        return weights
