"""The same program gives the same answers whatever the cache, the pool, the page size and the steps are like.

The scripted model is a function of its prompt, and reads every prompt back through the pages it was given: a wrong page, a
lost token or a mixed-up row changes an answer, or fails the step.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from random_programs import programs

from sglang_dsl.errors import RunError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.nodes import Fork, Gen, Join, Node, Plain, Text
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.backends.mock import mock
from sglang_dsl.runtime.engine.border import EngineConfig

TIMEOUT_S = 30
STORM = EngineConfig(max_batch_tokens=16, max_running=4, prefill_chunk_tokens=5, retract_every_steps=3, gather_s=0.0)
WORLDS: dict[str, dict[str, Any]] = {
    "no cache": {"config": EngineConfig(prefix_cache=False, gather_s=0.0)},
    "pages of 16": {"page_size": 16, "num_pages": 512, "config": EngineConfig(gather_s=0.0)},
    "storm": {"num_pages": 1400, "config": STORM},
    "storm in pages of 4": {"page_size": 4, "num_pages": 400, "config": STORM},
}


def reply(call: Any) -> str:
    digest = hashlib.sha256(call.prompt.encode()).hexdigest()
    return " ".join(digest[: 3 + int(digest[0], 16) % 6])


def results(nodes: list[Node], **world: Any) -> tuple[dict[str, Any], list[str]]:
    """What each node gave, and what was asked, sorted."""
    with mock(reply, **world) as backend:
        run = backend.open(RunSpec(options=RunOptions(seed=1)))
        run.extend(nodes)
        run.seal().result(TIMEOUT_S)
        values = {node.id: _shown(run.value(node.id)) for node in nodes}
        snapshot = backend.engine.snapshot().scheduler
        assert snapshot.leases == 0
        assert snapshot.free_pages + snapshot.evictable_pages == snapshot.total_pages
        return values, sorted(backend.calls().prompts)


def _shown(future: Any) -> Any:
    error = future.exception()
    return repr(error) if error is not None else future.result().value


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(nodes=programs())
def test_random_program_gives_the_same_in_every_world(world: dict[str, Any], nodes: list[Node]) -> None:
    if any(isinstance(node, Join) and node.mode in ("first", "vote") for node in nodes):
        nodes = [_patient(node) for node in nodes]
    assert results(nodes, **world) == results(nodes, config=EngineConfig(gather_s=0.0))


def _patient(node: Node) -> Node:
    """Races depend on the steps, by design: here every join waits for all."""
    return replace(node, mode="all") if isinstance(node, Join) and node.mode in ("first", "vote") else node


def test_worlds_are_as_stormy_as_they_say() -> None:
    nodes = _wide()
    with mock(reply, **WORLDS["storm"]) as backend:
        run = backend.open(RunSpec(options=RunOptions(seed=1)))
        run.extend(nodes)
        run.seal().result(TIMEOUT_S)
        assert backend.engine.snapshot().scheduler.retracted > 0
        assert not isinstance(run.record().error, RunError)


def _wide() -> list[Node]:
    nodes: list[Node] = [Text(id="t", pieces=(Plain("word " * 30),)), Fork(id="f", size=12, context="t")]
    return [*nodes, *(Gen(id=f"g{i}", name=f"g{i}", context="f", branch=i) for i in range(12))]
