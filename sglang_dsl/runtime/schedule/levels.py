"""Rows in depth-first order of the prefix tree, and the attention levels they share.

A row's path is the tree nodes whose pages begin its page table. Rows that share a node stand next to each other, so a level
is a run of rows; it pays from `min_tokens` shared tokens and two rows on (measured: below, one level is faster).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ..cache.node import Node
from .step import Group

Path: TypeAlias = tuple[tuple[int, int], ...]  # (serial, end in tokens) of nodes, shallowest first


class Levels(NamedTuple):
    """`groups[d]`: level d in row order. `own_starts[i]`: where row i's own level begins."""

    groups: tuple[tuple[Group, ...], ...]
    own_starts: list[int]


def paths_of(nodes: Sequence[Node | None], starts: Sequence[int]) -> list[Path]:
    """The paths of rows with these nodes at the end of their shared pages, each from the last node on that all rows of its
    namespace have in common and that ends before any of them begins: nothing above it can make a difference between them.
    """
    tops = _tops(nodes, starts)
    return [() if node is None else _path_from(tops[id(node.namespace)], node) for node in nodes]


def _tops(nodes: Sequence[Node | None], starts: Sequence[int]) -> dict[int, Node]:
    """By namespace: the nodes of one share one object."""
    rows: dict[int, tuple[dict[int, Node], int]] = {}
    for node, start in zip(nodes, starts, strict=True):
        if node is not None:
            found, first = rows.get(id(node.namespace)) or ({}, start)
            found[node.serial] = node
            rows[id(node.namespace)] = (found, min(first, start))
    return {namespace: _common_top(list(found.values()), first) for namespace, (found, first) in rows.items()}


def _common_top(nodes: list[Node], first: int) -> Node:
    """The deepest node that is at or above all of these and ends at or before `first`. Looks at what lies below it only."""
    above = nodes[0].parent
    siblings = len(nodes) > 1 and above is not None and all(node.parent is above for node in nodes)
    top = above if siblings and above is not None else _lowest_above(nodes)
    while top.end > first and top.parent is not None:
        top = top.parent
    return top


def _lowest_above(nodes: list[Node]) -> Node:
    seen = {node.serial for node in nodes}
    deepest = [(-node.end, node.serial, node) for node in nodes]
    heapq.heapify(deepest)
    while len(deepest) > 1:
        above = heapq.heappop(deepest)[2].parent
        if above is not None and above.serial not in seen:
            seen.add(above.serial)
            heapq.heappush(deepest, (-above.end, above.serial, above))
    return deepest[0][2]


def _path_from(top: Node, node: Node) -> Path:
    found: list[tuple[int, int]] = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        found.append((at.serial, at.end))
        if at is top:
            break
        at = at.parent
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
