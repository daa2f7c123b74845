"""Which runs of a body are made, and the one list of items they become.

All answers are followed while there are at most MAX_PATHS runs, and loops and recursions end within MAX_ROUNDS. Above that
every answer to every question is followed once: the rest of that run takes the answers of the run it parted from, and
rejoins it at their longest common end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...ir.nodes import Node
from .decisions import Decision, Group
from .items import Item
from .regions import merged
from .walk import Walk

MAX_PATHS = 256
MAX_ROUNDS = 24  # of a loop or a recursion that goes on by what it asks: most have no end of their own
ALTERNATING_ROUNDS = 8
MAX_RECURSIVE_PATHS = 48  # where a program calls itself more than once, the paths double with each depth

Walker: TypeAlias = Callable[[Sequence[Decision], Callable[[Decision], int], Sequence[Node]], Walk]

Loosen: TypeAlias = Callable[[Sequence[Node]], list[Item]]


def explored(walk: Walker, loosen: Loosen) -> list[Item]:
    """The items of all runs, made loose by `loosen`."""
    tree = _all_paths(walk, loosen)
    if tree is not None:
        return tree.items(0)
    return _Cover(walk, loosen).spine([], ()).items(0)


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tree:
    """The runs that agree on the first decisions. `children`: by the answer to the next one."""

    first: Walk
    loosen: Loosen
    children: dict[int, _Tree] = field(default_factory=dict)

    def items(self, depth: int) -> list[Item]:
        """What happens after `depth` decisions."""
        start = self.first.decisions[depth - 1].at if depth else 0
        loose = self.loosen(self.first.nodes)
        if not self.children:
            return loose[start:]
        decision = self.first.decisions[depth]
        return loose[start : decision.at] + merged(decision, self._ways(depth, decision))

    def _ways(self, depth: int, decision: Decision) -> list[tuple[Group, list[Item]]]:
        """By answer; a question about the same value that follows at once only splits an answer further."""
        ways: list[tuple[Group, list[Item]]] = []
        for answer, child in sorted(self.children.items()):
            following = child.first.decisions[depth + 1] if len(child.first.decisions) > depth + 1 else None
            if child.children and following is not None and (following.on, following.at) == (decision.on, decision.at):
                ways.extend(child._ways(depth + 1, following))
            else:
                ways.append((decision.groups[answer], child.items(depth + 1)))
        return ways


def _all_paths(walk: Walker, loosen: Loosen) -> _Tree | None:
    """Every run, or None where there are too many."""
    root: _Tree | None = None
    waiting: deque[tuple[list[Decision], Sequence[Node]]] = deque([([], ())])
    paths = 0
    while waiting:
        paths += 1
        if paths > MAX_PATHS:
            return None
        script, before = waiting.popleft()
        path = walk(script, _Alternating(), before)
        if _goes_on(path.decisions, paths):
            return None
        root = _grow(root, path, loosen)
        for index, decision in enumerate(path.decisions[len(script) :], len(script)):
            others = (n for n in range(len(decision.groups)) if n != decision.taken)
            waiting.extend(([*path.decisions[:index], decision.instead(n)], path.nodes) for n in others)
    return root


def _goes_on(decisions: Sequence[Decision], paths: int) -> bool:
    """Whether a loop or recursion asks the same question so often that following every answer leads nowhere."""
    rounds = Counter(decision.place for decision in decisions)
    recursive = paths > MAX_RECURSIVE_PATHS and any(decision.recursive for decision in decisions)
    return recursive or max(rounds.values(), default=0) > MAX_ROUNDS


def _grow(root: _Tree | None, path: Walk, loosen: Loosen) -> _Tree:
    if root is None:
        root = _Tree(path, loosen)
    tree = root
    for decision in path.decisions:
        tree = tree.children.setdefault(decision.taken, _Tree(path, loosen))
    return root


class _Alternating:
    """Answers a question anew with its first group, and in later rounds of a loop with the next, so that loops end."""

    def __init__(self) -> None:
        self._asked: Counter[object] = Counter()

    def __call__(self, decision: Decision) -> int:
        self._asked[decision.place] += 1
        return _answer(0, self._asked[decision.place], len(decision.groups))


# --- every answer once ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Spine:
    """A run, with the runs that part from it.

    One that parted from `parent` at its parting `number` does from item `cut` on what `parent` does from `joins` on.
    """

    path: Walk
    loose: list[Item]
    partings: list[tuple[Decision, list[tuple[Group, _Spine]]]] = field(default_factory=list)
    parent: _Spine | None = None
    cut: int = 0
    joins: int = 0
    number: int = 0

    def items(self, start: int, number: int = 0) -> list[Item]:
        """What happens from item `start` on, with the partings from `number` on."""
        if self.parent is not None and start >= self.cut:
            return self.parent.items_from(self.joins + start - self.cut, self.number + 1)
        end = self.cut if self.parent is not None else len(self.loose)
        if number < len(self.partings) and self.partings[number][0].at < end:
            decision, others = self.partings[number]
            own = self.items(max(decision.at, start), number + 1)
            ways = [(decision.values, own), *((values, other.items(decision.at)) for values, other in others)]
            return self.loose[start : decision.at] + merged(decision, ways, assumed=True)
        tail = [] if self.parent is None else self.parent.items_from(self.joins, self.number + 1)
        return self.loose[start:end] + tail

    def items_from(self, start: int, number: int) -> list[Item]:
        """What happens from item `start` on, with every parting there that is not before parting `number`."""
        while number < len(self.partings) and self.partings[number][0].at < start:
            number += 1
        return self.items(start, number)


class _Cover:
    """Makes the runs that follow every answer once."""

    def __init__(self, walk: Walker, loosen: Loosen) -> None:
        self._walk = walk
        self._loosen = loosen
        self._claimed: set[object] = set()
        self._preferred: dict[object, Group] = {}

    def spine(self, script: list[Decision], before: Sequence[Node], parent: _Spine | None = None) -> _Spine:
        """A run after `script`, and all that part from it."""
        path = self._walk(script, _Preferring(self._preferred), before)
        spine = _Spine(path, self._loosen(path.nodes))
        if parent is not None:
            begin = script[-1].at
            common = _common_end(spine.loose[begin:], parent.loose[begin:])
            spine.parent, spine.number, spine.cut = parent, len(parent.partings), len(spine.loose) - common
            spine.joins = len(parent.loose) - common
        fresh = []
        for index, decision in enumerate(path.decisions[len(script) :], len(script)):
            self._preferred.setdefault(decision.place, decision.values)
            if decision.place not in self._claimed and (parent is None or decision.at < spine.cut):
                self._claimed.add(decision.place)
                fresh.append((index, decision))
        for index, decision in fresh:
            others = [n for n in range(len(decision.groups)) if n != decision.taken]
            scripts = [[*path.decisions[:index], decision.instead(n)] for n in others]
            parted = [
                (decision.groups[n], self.spine(s, path.nodes, spine)) for n, s in zip(others, scripts, strict=True)
            ]
            spine.partings.append((decision, parted))
        return spine


def _answer(first: int, asked: int, groups: int) -> int:
    """Another answer in each round, so that loops end; later each for 4, 8, 16 ... rounds on end, so that a recursion does that
    calls itself more than once.
    """
    if asked <= ALTERNATING_ROUNDS:
        return (first + asked - 1) % groups
    stretch = ((asked - ALTERNATING_ROUNDS - 1) // 4 + 1).bit_length()
    return (first - stretch) % groups


class _Preferring:
    """Answers as the runs before did, and in later rounds of a loop with the next answer."""

    def __init__(self, preferred: dict[object, Group]) -> None:
        self._preferred = preferred
        self._asked: Counter[object] = Counter()

    def __call__(self, decision: Decision) -> int:
        known = self._preferred.get(decision.place)
        first = decision.groups.index(known) if known in decision.groups else 0
        self._asked[decision.place] += 1
        return _answer(first, self._asked[decision.place], len(decision.groups))


def _common_end(one: Sequence[Item], other: Sequence[Item]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return length
