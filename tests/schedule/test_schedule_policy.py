from __future__ import annotations

import pytest

HOT = tuple(range(40))


def order_of(it, names):
    """The order in which requests are admitted, one running at a time."""
    it.run()
    firsts = {
        name: next(i for i, p in enumerate(it.worker.plans) if any(o.seq_id == seq for o in p.opens))
        for name, seq in names.items()
    }
    return sorted(names, key=firsts.get)


def queue(it, **requests):
    """Queue requests behind one that is running; returns their sequence ids by name."""
    it.generate("running", (49,), 3)
    it.turn()
    for name, (prompt, more) in requests.items():
        it.generate(name, prompt, 2, **more)
    return {name: i for i, name in enumerate(requests, len(it.requests) - len(requests) + 1)}


def warm(lab, policy, **config):
    it = lab(policy=policy, max_running=1, **config)
    it.generate("warm", HOT, 2)
    it.run()
    return it


REQUESTS = {
    "cold": ((5, 6, 7), {}),
    "half": ((*HOT[:20], 48), {}),
    "hot": ((*HOT, 47), {}),
    "urgent": ((8, 9), {"priority": 3}),
}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fcfs", ["cold", "half", "hot", "urgent"]),
        ("longest_prefix", ["urgent", "hot", "half", "cold"]),
        ("priority", ["urgent", "cold", "half", "hot"]),
    ],
)
def test_policy_orders_the_queue_by_its_own_rule(lab, policy, expected):
    it = warm(lab, policy)
    assert order_of(it, queue(it, **REQUESTS)) == expected
    it.expect_cold_outputs()


def test_depth_first_admits_subtree_by_subtree_the_fullest_first(lab):
    it = lab(policy="depth_first", max_running=9)
    stems = {"x": HOT[:10], "y": HOT[10:20]}
    for name, stem in stems.items():
        it.generate(name, stem, 2)
    it.run()
    for i, name in enumerate("xyxyy"):
        it.generate(f"{i}{name}", (*stems[name], i), 2)
    opened = [opened.prompt_ids[0] for opened in it.turn().opens]
    assert opened == [10, 10, 10, 0, 0]
    it.run()
    it.expect_cold_outputs()


def test_longest_path_waiting_for_a_request_breaks_ties(lab):
    it = lab(max_running=1)
    order = order_of(it, queue(it, short=((1, 2), {"critical_tokens": 5}), long=((3, 4), {"critical_tokens": 500})))
    assert order == ["long", "short"]


def test_nearer_deadline_goes_first_among_equal_priorities(lab):
    it = lab(max_running=1, policy="priority")
    order = order_of(it, queue(it, later=((1, 2), {"deadline_s": 90.0}), sooner=((3, 4), {"deadline_s": 50.0})))
    assert order == ["sooner", "later"]


def test_queue_of_thousands_is_ranked_by_a_window(lab):
    it = lab(max_running=4, check_integrity=False)
    for i in range(2000):
        it.generate(f"r{i}", (i % 50, i // 50), 1)
    it.run()
    assert len(it.ended) == 2000
    it.expect_cold_outputs()


def test_same_requests_give_the_same_plans(lab):
    def plans():
        it = lab(num_pages=120, max_batch_tokens=24, max_running=6, retract_every_steps=4)
        for i in range(12):
            it.generate(f"r{i}", (*HOT[: 3 * i % 20 + 1], i), 5)
        it.run()
        return [(p.rows, p.levels, p.samples, p.opens, p.closes) for p in it.worker.plans]

    assert repr(plans()) == repr(plans())


def test_seed_of_a_request_is_its_own_whoever_runs_beside_it(lab):
    def seed(neighbours):
        it = lab()
        for i in range(neighbours):
            it.generate(f"n{i}", (1, i), 2)
        it.generate("me", (5, 6), 2)
        plan = it.turn()
        return plan.opens[-1].seed

    assert seed(0) == seed(7)


def test_levels_are_kept_until_the_batch_changes(lab):
    it = lab(num_pages=700, cascade_min_tokens=32)
    for i in range(4):
        it.generate(f"r{i}", (*HOT, i), 4 if i else 8)
    plans = [it.turn() for _ in range(4)]
    assert plans[1].levels is plans[2].levels
    it.turn()
    assert it.turn().levels == ()


def test_request_that_says_no_priority_comes_after_one_that_says_one(lab):
    it = lab(max_running=1, policy="priority")
    assert order_of(it, queue(it, plain=((1, 2), {}), one=((3, 4), {"priority": 1}))) == ["one", "plain"]


@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix", "depth_first", "priority"])
def test_those_who_waited_too_long_go_first_in_their_own_order_and_once(lab, policy):
    it = lab(policy=policy, max_running=9, aging_s=5.0)
    it.generate("warm", HOT, 2)
    it.run()
    for i in range(3):
        it.generate(f"old{i}", (40 + i, 1), 2, priority=i)
    it.now += 5.5
    it.generate("hot", (*HOT, 47), 2, priority=9)
    plan = it.turn()
    assert [opened.request_id for opened in plan.opens][:3] == ["old0", "old1", "old2"]
    assert len(plan.opens) == 4
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize(("waited", "first"), [(4.9, "hot"), (5.1, "old")])
def test_waiting_counts_from_arrival(lab, waited, first):
    it = lab(max_running=1, aging_s=5.0)
    it.generate("warm", HOT, 2)
    it.run()
    it.generate("old", (40, 1), 2)
    it.now += waited
    it.generate("hot", (*HOT, 47), 2)
    [opened] = it.turn().opens
    assert opened.request_id == first
