from __future__ import annotations

import itertools
import random

import pytest

from sglang_dsl.runtime.schedule.step import RowGroup
from sglang_dsl.runtime.schedule.step_builder import depth_first, shared_levels


def path(*steps):
    """Steps as (serial, end)."""
    return tuple(steps)


A, B, C, D = (1, 300), (2, 700), (3, 650), (4, 320)


def test_levels_of_siblings_share_their_parent_once():
    levels = shared_levels([path(A)] * 3, [300, 310, 320], 256)
    assert levels.groups == ((RowGroup(0, 3, 0, 300),),)
    assert levels.own_starts == [300, 300, 300]


def test_levels_nest_where_each_adds_enough():
    paths = [path(A), path(A, B), path(A, B), path(A, C), path(A, C)]
    levels = shared_levels(paths, [300, 700, 700, 650, 650], 256)
    assert levels.groups == ((RowGroup(0, 5, 0, 300),), (RowGroup(1, 3, 300, 700), RowGroup(3, 5, 300, 650)))
    assert levels.own_starts == [300, 700, 700, 650, 650]


def test_levels_too_short_to_pay_are_left_out():
    levels = shared_levels([path(A, D), path(A, D)], [320, 320], 321)
    assert levels.groups == ()
    assert levels.own_starts == [0, 0]


def test_levels_too_short_alone_pay_together_with_what_follows():
    levels = shared_levels([path((1, 100), (2, 300)), path((1, 100), (2, 300))], [300, 300], 256)
    assert levels.groups == ((RowGroup(0, 2, 0, 300),),)


def test_levels_leave_out_the_row_that_computes_the_prefix():
    levels = shared_levels([path(A), path(A), path(A)], [0, 300, 300], 256)
    assert levels.groups == ((RowGroup(1, 3, 0, 300),),)
    assert levels.own_starts == [0, 300, 300]


def test_levels_of_a_single_row_are_none():
    assert shared_levels([path(A)], [300], 1).groups == ()


@pytest.mark.parametrize("seed", range(30))
def test_levels_of_random_trees_are_disjoint_nested_and_shared_by_their_rows(seed):
    rng = random.Random(seed)
    paths = []
    for _ in range(20):
        serial, end, steps = 0, 0, []
        for depth in range(rng.randrange(5)):
            serial = serial * 3 + rng.randrange(1, 3)
            end += 10 + (serial + depth) % 4
            steps.append((serial, end))
        paths.append(tuple(steps))
    paths.sort()
    starts = [p[-1][1] if p and rng.random() < 0.8 else 0 for p in paths]
    levels = shared_levels(paths, starts, 12)
    ends = [0] * len(paths)
    for groups in levels.groups:
        assert list(groups) == sorted(groups)
        assert all(one.end_row <= two.first_row for one, two in itertools.pairwise(groups))
        for group in groups:
            assert group.end_row - group.first_row >= 2
            assert group.end - group.start >= 12
            common = {
                tuple(s for s in paths[row] if s[1] <= group.end) for row in range(group.first_row, group.end_row)
            }
            assert len(common) == 1
            for row in range(group.first_row, group.end_row):
                assert starts[row] >= group.end
                assert ends[row] == group.start
                ends[row] = group.end
    assert levels.own_starts == ends


def test_order_puts_whoever_computes_a_prefix_before_all_that_read_it():
    """A node that is split keeps its serial below the split: by serial alone its writer would stand behind its readers."""
    split, rest, below = (7, 40), (3, 60), (9, 50)
    writer, reader, ends_at_split = ((split, rest), 10), ((split, below), 40), ((split,), 40)
    rows = [reader, ends_at_split, writer]
    order = depth_first([path for path, _ in rows], [start for _, start in rows])
    assert rows[order[0]] == writer


def test_order_keeps_subtrees_together():
    paths = [((1, 8), (2, 16)), ((5, 4),), ((1, 8), (4, 16)), ((1, 8), (2, 16), (6, 20)), ((1, 8),)]
    order = depth_first(paths, [16, 4, 16, 20, 8])
    serials = [[paths[i][0][0] for i in order], [paths[i][1][0] for i in order if len(paths[i]) > 1]]
    assert serials == [[5, 1, 1, 1, 1], [2, 2, 4]]
