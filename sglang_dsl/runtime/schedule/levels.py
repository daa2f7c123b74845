"""Rows in depth-first order of the prefix tree, and the attention levels they share.

A row's path is the tree nodes whose pages begin its page table. Rows that share a node stand next to each other, so a level
is a run of rows; it pays from `min_tokens` shared tokens and two rows on (measured: below, one level is faster).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ..cache.node import Node
from .step import Group

Path: TypeAlias = tuple[tuple[int, int], ...]  # (serial, end in tokens) of each node below the root, shallowest first


class Levels(NamedTuple):
    """`groups[d]`: level d in row order. `own_starts[i]`: where row i's own level begins."""

    groups: tuple[tuple[Group, ...], ...]
    own_starts: list[int]


def path_of(node: Node | None) -> Path:
    """The path a row with this node at the end of its shared pages has."""
    found: list[tuple[int, int]] = []
    while node is not None:
        if node.parent is not None:
            found.append((node.serial, node.end))
        node = node.parent
    found.reverse()
    return tuple(found)


def depth_first(paths: Sequence[Path], starts: Sequence[int]) -> list[int]:
    """The order of rows: subtree by subtree, and whoever computes a prefix before all that read it.

    Of the branches below a node the one that begins earliest goes first: a row that computes tokens of the node itself begins
    before its end, all others behind it.
    """
    earliest: dict[int, int] = {}
    for path, start in zip(paths, starts, strict=True):
        for serial, _ in path:
            earliest[serial] = min(start, earliest.get(serial, start))
    places = [
        (*((earliest[serial], serial) for serial, _ in path), (start, -1))
        for path, start in zip(paths, starts, strict=True)
    ]
    return sorted(range(len(places)), key=places.__getitem__)


def shared_levels(paths: Sequence[Path], starts: Sequence[int], min_tokens: int) -> Levels:
    """The levels of rows in this order. Only nodes that end before a row's own new tokens can be in its levels.

    Each extra level has to add `min_tokens` shared by at least two rows.
    """
    usable = [tuple(step for step in path if step[1] <= start) for path, start in zip(paths, starts, strict=True)]
    own_starts = [0] * len(usable)
    levels: list[list[Group]] = []
    stack = [(0, len(usable), 0, 0, 0)]  # rows [first, end), nodes already common, where the level begins, its depth
    while stack:
        first, end, depth, start, level = stack.pop()
        for run_first, run_end in _runs(usable, first, end, depth):
            common = _common_depth(usable, run_first, run_end, depth)
            shared_end = usable[run_first][common - 1][1]
            next_start, next_level = start, level
            if shared_end - start >= min_tokens:
                while len(levels) <= level:
                    levels.append([])
                levels[level].append(Group(run_first, run_end, start, shared_end))
                own_starts[run_first:run_end] = [shared_end] * (run_end - run_first)
                next_start, next_level = shared_end, level + 1
            stack.append((run_first, run_end, common, next_start, next_level))
    return Levels(tuple(tuple(sorted(groups)) for groups in levels), own_starts)


def _runs(paths: Sequence[Path], first: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Runs of two or more rows in [first, end) that share their node at `depth`."""
    runs, at = [], first
    while at < end:
        start = at
        at += 1
        if len(paths[start]) <= depth:
            continue
        serial = paths[start][depth][0]
        while at < end and len(paths[at]) > depth and paths[at][depth][0] == serial:
            at += 1
        if at - start > 1:
            runs.append((start, at))
    return runs


def _common_depth(paths: Sequence[Path], first: int, end: int, depth: int) -> int:
    """How many nodes all rows in [first, end) share, knowing that they share `depth + 1`."""
    common = depth + 1
    longest = min(len(paths[row]) for row in range(first, end))
    while common < longest and len({paths[row][common][0] for row in range(first, end)}) == 1:
        common += 1
    return common
