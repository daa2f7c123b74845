"""The critical path: how much is still to be generated behind a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def longest_path(
    start: T,
    followers: Callable[[T], Iterable[T]],
    weight: Callable[[T], int],
    longest: dict[T, int] | None = None,
) -> int:
    """The largest sum of weights along a path that begins at `start` (included). The graph has to be acyclic.

    Iterative, each node once: a program may append a chain of thousands of nodes before the first of them runs.

    Args:
        longest: results to reuse and to add to, as long as the graph below them has not grown.
    """
    longest = {} if longest is None else longest
    stack = [start]
    while stack and start not in longest:
        node = stack[-1]
        open_followers = [f for f in followers(node) if f not in longest]
        if open_followers:
            stack.extend(open_followers)
            continue
        stack.pop()
        longest[node] = weight(node) + max((longest[f] for f in followers(node)), default=0)
    return longest[start]
