"""The canary itself: planted faults have to be found, or the other tests prove nothing."""

from __future__ import annotations

import pytest

PROMPT = tuple(range(40))


def started(lab, **config):
    it = lab(**config)
    it.generate("a", (*PROMPT, 1), 6)
    it.generate("b", (*PROMPT, 2), 6)
    it.turn()
    return it


def test_canary_finds_a_page_overwritten_by_somebody_else(lab):
    it = started(lab)
    it.worker.slots[it.scheduler.step(it.now).rows[0].pages[3]][0] = (9, 3)
    with pytest.raises(AssertionError, match="reads"):
        it.land(it.scheduler._in_flight.plan)


def test_canary_finds_a_row_that_points_at_another_position(lab):
    it = started(lab)
    plan = it.scheduler.step(it.now)
    plan.rows[0].pages[4], plan.rows[0].pages[5] = plan.rows[0].pages[5], plan.rows[0].pages[4]
    with pytest.raises(AssertionError, match="position 4 reads"):
        it.land(plan)


def test_canary_finds_a_missing_mirror(lab):
    it = lab(page_size=16, num_pages=40)
    it.generate("leader", (*PROMPT, *range(20)), 3)
    it.generate("child", (*PROMPT, 49), 3)
    plan = it.scheduler.step(it.now)
    assert plan.mirrors
    with pytest.raises(AssertionError, match="reads None"):
        it.land(plan._replace(mirrors=plan.mirrors[1:]))


def test_canary_finds_a_level_over_pages_that_are_not_shared(lab):
    it = started(lab, cascade_min_tokens=16)
    plan = it.scheduler.step(it.now)
    assert plan.levels
    plan.rows[1].pages[2] = plan.rows[1].pages[3]
    with pytest.raises(AssertionError):
        it.land(plan)
