"""Seeded storms: whatever happens, pages are never lost and finished outputs are those of a run alone."""

from __future__ import annotations

import random

import pytest

from sglang_dsl.errors import CapacityError


class Storm:
    """Random arrivals, forks with leases, scores, cancellations, worker faults."""

    def __init__(self, lab, seed):
        self.rng = random.Random(seed)
        self.lab = lab
        self.count = 0
        self.trunks = [self.ids(self.rng.randrange(3, 70)) for _ in range(5)]

    def ids(self, length):
        return tuple(self.rng.randrange(50) for _ in range(length))

    def prompt(self):
        trunk = self.rng.choice(self.trunks)
        cut = self.rng.randrange(1, len(trunk) + 1)
        return trunk[:cut] + self.ids(self.rng.choice((0, 0, 1, 2, 9, 25)))

    def name(self):
        self.count += 1
        return f"r{self.count}"

    def arrive(self):
        kind = self.rng.random()
        if kind < 0.55:
            self.lab.generate(self.name(), self.prompt(), self.rng.randrange(1, 9), priority=self.rng.randrange(3))
        elif kind < 0.62:
            self.lab.generate(self.name(), self.prompt(), 2, no_cache=True)
        elif kind < 0.7:
            self.lab.generate(self.name(), self.prompt(), 3, prompt_logprobs=self.rng.randrange(3))
        elif kind < 0.85:
            self.fork()
        else:
            self.score()

    def fork(self):
        parent, children = self.prompt(), self.rng.randrange(2, 6)
        lease = self.lab.scheduler.lease(parent, NAMESPACE, children)
        coming = self.rng.randrange(children + 1)
        same = self.rng.random() < 0.3
        for _ in range(coming):
            prompt = parent if same else parent + self.ids(self.rng.randrange(4))
            self.lab.generate(self.name(), prompt, self.rng.randrange(1, 6), lease=lease)
        self.lab.scheduler.release(lease, None if self.rng.random() < 0.2 else children - coming)

    def score(self):
        stem = self.ids(3)
        choices = [
            stem[: self.rng.randrange(4)] + self.ids(self.rng.randrange(4)) for _ in range(self.rng.randrange(1, 8))
        ]
        prompt = self.prompt() if self.rng.random() < 0.9 else ()
        self.lab.score(self.name(), prompt, choices, unconditional=self.rng.random() < 0.3)

    def disturb(self):
        living = [r for r in self.lab.requests if r not in self.lab.ended]
        if living and self.rng.random() < 0.08:
            self.lab.cancel(self.rng.choice(living))
        if self.rng.random() < 0.01:
            self.lab.worker.fail_next = RuntimeError("worker fault")
        if self.rng.random() < 0.01:
            self.lab.scheduler.flush()

    def blow(self, steps, arrivals=0.5):
        for _ in range(steps):
            if self.rng.random() < arrivals and self.lab.scheduler.snapshot().waiting < 20:
                self.arrive()
            self.disturb()
            self.turn()

    def turn(self):
        lab = self.lab
        lab.take(lab.scheduler.expired(lab.now))
        plan = lab.scheduler.step(lab.now)
        if plan is None:
            return
        living = [r for r in lab.requests if r not in lab.ended]
        if living and self.rng.random() < 0.05:
            lab.cancel(self.rng.choice(living))  # while the step is in flight
        lab.land(plan)


NAMESPACE = None


@pytest.fixture(autouse=True)
def _default_namespace(namespace):
    global NAMESPACE
    NAMESPACE = namespace("")


def storm(lab, seed, steps, *, flaky=0.0, **config):
    it = lab(**config)
    rough = Storm(it, seed)
    it.break_allocations(random.Random(seed + 1), flaky)
    rough.blow(steps)
    it.mend_allocations()
    assert bool(it.refusals) == bool(flaky)
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()
    assert set(it.ended) == set(it.requests), "every request came to an end"
    assert not any(isinstance(e, CapacityError) for e in it.errors.values())
    return it


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_scheduler_in_a_storm_keeps_outputs_and_pages(lab, page_size, seed):
    it = storm(
        lab, seed, 150, page_size=page_size, num_pages=400 // page_size, max_batch_tokens=48, max_running=12,
        cascade_min_tokens=16, prefill_chunk_tokens=16, retract_every_steps=7, flaky=0.03,
    )  # fmt: skip
    snapshot = it.scheduler.snapshot()
    assert snapshot.finished > 20
    assert snapshot.retracted > 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_scheduler_of_any_shape_in_a_storm_keeps_outputs_and_pages(lab, seed):
    rng = random.Random(seed)
    page_size, running = rng.choice((1, 1, 2, 4, 8, 16)), rng.choice((1, 2, 4, 8, 12))
    storm(
        lab, seed, 150,
        page_size=page_size,
        num_pages=max(rng.choice((130, 160, 200, 300, 500)) // page_size, 12),
        max_running=running,
        max_batch_tokens=max(running + page_size - 1, rng.choice((16, 24, 40, 64, 200))),
        prefill_chunk_tokens=rng.choice((None, 16, 33)),
        cascade_min_tokens=rng.choice((1, 8, 32)),
        retract_every_steps=rng.choice((None, None, 3, 5, 9)),
        policy=rng.choice(("fcfs", "longest_prefix", "depth_first", "priority")),
        eviction=rng.choice(("lru", "lfu", "slru", "fifo", "priority")),
        prefix_cache=rng.random() < 0.9,
        aging_s=rng.choice((0.05, 10.0)),
        bos=rng.choice((None, 7)),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix", "depth_first", "priority"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_scheduler_in_a_long_storm_keeps_outputs_and_pages(lab, policy, page_size):
    storm(
        lab, 11, 2000, page_size=page_size, num_pages=300 // page_size, max_batch_tokens=40, max_running=10,
        cascade_min_tokens=16, prefill_chunk_tokens=16, retract_every_steps=5, policy=policy, flaky=0.02,
    )  # fmt: skip
