"""The critical path: how much is still to be generated behind a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def longest_path(start: T, followers: Callable[[T], Iterable[T]], weight: Callable[[T], int]) -> int:
    """The largest sum of weights along a path that begins at `start` (included). The graph has to be acyclic.

    Iterative, each node once: a program may append a chain of thousands of nodes before the first of them runs.
    """
    longest: dict[T, int] = {}
    stack = [start]
    while stack:
        node = stack[-1]
        open_followers = [f for f in followers(node) if f not in longest]
        if open_followers:
            stack.extend(open_followers)
            continue
        stack.pop()
        longest[node] = weight(node) + max((longest[f] for f in followers(node)), default=0)
    return longest[start]
