"""Who is admitted next: policies behind one protocol.

A policy ranks a window of the waiting queue (the first `WINDOW` by arrival, so that ranking stays cheap and nobody is out of
sight for ever). Whoever has waited longer than the aging limit goes first under every policy, oldest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Protocol, TypeAlias

from ..cache.node import Node
from ..cache.tree import RadixTree
from .config import PolicyName
from .sequence import Sequence

WINDOW = 128

Rank: TypeAlias = tuple[float | tuple[tuple[int, int], ...], ...]


class Policy(Protocol):
    """Ranks waiting sequences: smaller is admitted earlier."""

    def __call__(self, window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
        """Rank by seq_id."""


def fcfs(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """In order of arrival."""
    return {seq.seq_id: (seq.arrival,) for seq in window}


def longest_prefix(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """Higher priority, then most cached tokens, then the longest path that waits for it."""
    for seq in window:
        seq.matched = _found(seq, tree)[1]
    return {
        seq.seq_id: (-seq.request.priority, -seq.matched, -seq.request.critical_tokens, seq.arrival) for seq in window
    }


def depth_first(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """Subtree by subtree, that with most waiting requests first, so that a shared prefix is used up while it is there."""
    paths: dict[int, list[Node]] = {}
    for seq in window:
        node, seq.matched = _found(seq, tree)
        paths[seq.seq_id] = node.path() if node is not None and seq.matched else []
    weight = Counter(node.serial for path in paths.values() for node in path)
    return {
        seq.seq_id: (
            -seq.request.priority,
            (*((-weight[node.serial], node.serial) for node in paths[seq.seq_id]), (0, 0)),
            seq.arrival,
        )
        for seq in window
    }


def _found(seq: Sequence, tree: RadixTree) -> tuple[Node | None, int]:
    return tree.peek(seq.namespace, seq.key, seq.match_limit, ids=seq.request.prompt_ids)


def priority(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """Higher priority, then the nearer deadline, then the longest path that waits for it."""
    return {
        seq.seq_id: (
            -seq.request.priority,
            math.inf if seq.request.deadline_s is None else seq.request.deadline_s,
            -seq.request.critical_tokens,
            seq.arrival,
        )
        for seq in window
    }


POLICIES: Mapping[PolicyName, Policy] = {
    "fcfs": fcfs,
    "longest_prefix": longest_prefix,
    "depth_first": depth_first,
    "priority": priority,
}


def ordered(
    policy: Policy, waiting: Mapping[int, Sequence], tree: RadixTree, now: float, aging_s: float
) -> list[Sequence]:
    """The window of the queue in the order of admission."""
    window = list(islice(waiting.values(), WINDOW))
    if len(window) < 2:
        return window
    ranks = policy(window, tree)
    aged = [seq for seq in window if now - seq.arrived_s > aging_s]
    late = {seq.seq_id for seq in aged}
    return aged + sorted((s for s in window if s.seq_id not in late), key=lambda s: ranks[s.seq_id])
