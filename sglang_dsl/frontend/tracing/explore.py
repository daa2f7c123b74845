"""Which runs of a body are made, and the one list of items they become.

All ways are followed while there are at most MAX_PATHS of them, and loops and recursions end within MAX_ROUNDS. Above that every answer to every question is followed once:
the rest of that run takes the answers of the run it parted from, and rejoins it at their longest common end.

    run     -- a? --- x --- b? --- y --- c? --- z --        questions that follow each other cost the sum of their answers,
    others     '- x' -'     '- y' -'     '- z' -'           not the product; that they do not matter to each other is assumed
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from ...ir.nodes import Expression, Fork, Node
from ...ir.semantics import mapped, renaming
from .items import Decision, Group, Item, filled, forks_needed, holes, outline, parts_of
from .regions import ArmMerger, MergedReferences, merged
from .trace import BodyRun

MAX_PATHS = 256
MAX_ROUNDS = 24  # of a loop or a recursion that goes on by what it asks: most have no end of their own
ALTERNATING_ROUNDS = 8
MAX_RECURSIVE_PATHS = 48  # where a program calls itself more than once, the paths double with each depth
MAX_DEPTH = 8  # of runs that part from runs: behind it, rounds of a loop are alike
MAX_RUNS = 256  # from here on a question of a loop's further rounds is one that was followed
MANY = (
    8  # questions of one run whose answers have more than MAX_PATHS combinations, if they do not matter to each other
)

Walker: TypeAlias = Callable[[Sequence[Decision], Callable[[Decision], int], Sequence[Node]], BodyRun]

Loosen: TypeAlias = Callable[[Sequence[Node]], list[Item]]


def explored(walk: Walker, loosen: Loosen) -> list[Item]:
    """The items of all runs, made loose by `loosen`."""
    root = walk([], _Alternating(), ())
    cover = None if len(root.decisions) < MANY else _Cover(walk, loosen)
    if cover is None or cover.root.paths(0, len(cover.root.decisions)) <= MAX_PATHS:
        tree = _all_paths(walk, loosen, root)
        if tree is not None:
            return tree.items(0)
    run = (cover or _Cover(walk, loosen)).root
    return run.stretch(0, 0, _Place(len(run.raw), len(run.decisions)), MergedReferences())


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tree:
    """The runs that agree on the first decisions. `children`: by the answer to the next one."""

    first: BodyRun
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


def _all_paths(walk: Walker, loosen: Loosen, first: BodyRun) -> _Tree | None:
    """Every run, of which `first` has been made, or None where there are too many."""
    root: _Tree | None = None
    waiting: deque[tuple[list[Decision], Sequence[Node]]] = deque([([], ())])
    paths = 0
    while waiting:
        paths += 1
        if paths > MAX_PATHS:
            return None
        script, before = waiting.popleft()
        path = walk(script, _Alternating(), before) if script else first
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


def _grow(root: _Tree | None, path: BodyRun, loosen: Loosen) -> _Tree:
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


def _answer(first: int, asked: int, groups: int) -> int:
    """Another answer in each round, so that loops end; later each for 4, 8, 16 ... rounds on end, so that a recursion does that
    calls itself more than once.
    """
    if asked <= ALTERNATING_ROUNDS:
        return (first + asked - 1) % groups
    stretch = ((asked - ALTERNATING_ROUNDS - 1) // 4 + 1).bit_length()
    return (first - stretch) % groups


# --- every answer once ------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A point of a run: the item and the decision that come next."""

    item: int
    number: int


class _Run:
    """A run, and the runs that part from it. Owner: one `_Cover`.

    raw: its items. items: the same, while what they mention is replaced by results of Regions. partings: by number of the
    decision, the other answers with their runs. A run that parted from another does from `cut` on what that one does from `joins`
    on.
    """

    __slots__ = (
        "cut",
        "decisions",
        "depth",
        "ends",
        "first",
        "items",
        "joins",
        "nodes",
        "parent",
        "partings",
        "raw",
        "shapes",
    )

    def __init__(self, path: BodyRun, loose: list[Item], first: int, parent: _Run | None) -> None:
        self.decisions = path.decisions
        self.raw = tuple(loose)
        self.items = list(loose)
        self.shapes = [outline(item) for item in loose]
        self.first = first  # number of the first decision of its own
        self.partings: dict[int, list[tuple[Group, _Run]]] = {}
        self.ends: dict[int, _Place] = {}
        self.nodes = path.nodes
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.cut = self.joins = _Place(0, 0)

    def rejoin(self, parent: _Run, begin: int) -> None:
        """Find the longest common end, of items and of questions, with the run it parted from at item `begin`."""
        common, most = 0, min(len(self.raw), len(parent.raw)) - begin
        while common < most and self.shapes[-1 - common] == parent.shapes[-1 - common]:
            common += 1
        while common and self._needs_a_fork(begin, len(self.raw) - common, parent, len(parent.raw) - common):
            common -= 1  # what stands on the branches of a fork of one way only belongs to that way
        while True:
            asked = self._common_questions(parent, common)
            self.cut = _Place(len(self.raw) - common, len(self.decisions) - asked)
            self.joins = _Place(len(parent.raw) - common, len(parent.decisions) - asked)
            late = [
                run.decisions[at.number - 1].at - at.item
                for run, at in ((self, self.cut), (parent, self.joins))
                if at.number
            ]
            if max(late, default=0) <= 0:
                return
            common -= max(late)  # a question of one way only: what stands before it belongs to that way

    def _common_questions(self, parent: _Run, common: int) -> int:
        asked = 0
        for one, other in zip(reversed(self.decisions[self.first :]), reversed(parent.decisions), strict=False):
            left, right = len(self.raw) - one.at, len(parent.raw) - other.at
            if left > common or left != right or (one.place, one.groups) != (other.place, other.groups):
                break
            asked += 1
        return asked

    def _needs_a_fork(self, begin: int, cut: int, parent: _Run, joins: int) -> bool:
        own, theirs = _forks_in(self.raw[begin:cut]), _forks_in(parent.raw[begin:joins])
        return own != theirs and any(not forks_needed(item).isdisjoint(own | theirs) for item in self.raw[cut:])

    def end_of(self, number: int) -> _Place:
        """The place behind everything that the answers to decision `number` change."""
        if number not in self.ends:
            end = _Place(self.decisions[number].at, number + 1)
            for _, other in self.partings[number]:
                end = self._at_least(end, other.joins)
            while (grown := self._grown(number, end)) != end:
                end = grown
            self.ends[number] = end
        return self.ends[number]

    def _at_least(self, one: _Place, other: _Place) -> _Place:
        item, number = max(one.item, other.item), max(one.number, other.number)
        while number < len(self.decisions) and self.decisions[number].at < item:
            number += 1
        return _Place(item, number)

    def _grown(self, number: int, end: _Place) -> _Place:
        """`end`, or behind it where a decision before it changes more."""
        for inner in self.partings:
            if number < inner < end.number:
                end = self._at_least(end, self.end_of(inner))
        for _, other in self.partings[number]:
            for inner in other.partings:
                until = other.same_place(end)
                if other.first <= inner < until.number:
                    grown = other._at_least(until, other.end_of(inner))
                    end = _Place(end.item + grown.item - until.item, end.number + grown.number - until.number)
        return end

    def same_place(self, end: _Place) -> _Place:
        """Where this run stands when the one it parted from stands at `end`, which is behind where they meet."""
        return _Place(self.cut.item + end.item - self.joins.item, self.cut.number + end.number - self.joins.number)

    def _splits(self, number: int) -> bool:
        """Whether a decision splits an answer to the one before it further."""
        one, other = self.decisions[number - 1], self.decisions[number]
        return (one.on, one.at) == (other.on, other.at)

    def paths(self, number: int, end: int) -> int:
        """How many ways there are from decision `number` to decision `end`."""
        total = 1
        while number < end:
            if number not in self.partings:
                number += 1
                continue
            until = self.end_of(number)
            ways = self.paths(number + 1, until.number)
            for _, other in self.partings[number]:
                ways += other.paths(other.first, other.same_place(until).number)
            total *= ways
            number = until.number
        return total

    # one list of items --------------------------------------------------------------------------------------------

    def stretch(self, start: int, number: int, end: _Place, seen: MergedReferences) -> list[Item]:
        """What happens from item `start` to `end`, with the partings from decision `number` on.

        seen: how what Regions before this stretch have made is mentioned; the run's own items do so already.
        """
        found: list[Item | ArmMerger] = []
        while number < end.number:
            if number not in self.partings:
                number += 1
                continue
            found += self.items[start : self.decisions[number].at]
            until = self.end_of(number)
            meeting = self._meeting(number, until, seen)
            if meeting is not None:
                found.append(meeting)
                seen = seen.after(meeting)
            start, number = until
        found += self.items[start : end.item]
        return [item for each in found for item in (each.finished() if isinstance(each, ArmMerger) else [each])]

    def _meeting(self, number: int, until: _Place, seen: MergedReferences) -> ArmMerger | None:
        """The answers to a decision as one, and what follows them rewritten; None where all do the same."""
        end = until.item
        before = self.items[end:]
        ways: list[_Way] = []
        for values, items, run, at in self._ways(number, until, seen):
            following = self.items[end:] if run is self else self._following(run, at, end, before, seen)
            same = next((way for way in ways if (way.items, way.following) == (items, following)), None)
            if same is None:
                ways.append(_Way(values, items, following))
            else:
                same.values = None if same.values is None or values is None else same.values + values
        if len(ways) == 1:
            return None
        meeting = ArmMerger(self.decisions[number], [(way.values, way.items) for way in ways], assumed=True)
        for place, common in enumerate(before):
            self.items[end + place] = meeting.shared(common, [way.following[place] for way in ways])
        return meeting

    def _ways(self, number: int, end: _Place, seen: MergedReferences) -> list[tuple[Group, list[Item], _Run, int]]:
        """Per answer: its values, what happens up to `end`, and the run and item that go on from there."""
        begin = self.decisions[number].at
        if number + 1 in self.partings and self._splits(number + 1):
            ways = self._ways(number + 1, end, seen)
        else:
            ways = [(self.decisions[number].values, self.stretch(begin, number + 1, end, seen), self, end.item)]
        for values, other in self.partings[number]:
            until, following = other.same_place(end), other.first
            if following in other.partings and other._splits(following):
                ways += other._ways(following, until, seen)
            else:
                items = other.stretch(begin, following, until, seen)
                ways.append((values, [seen.translated(item) for item in items], other, until.item))
        return ways

    def _following(self, run: _Run, at: int, end: int, before: list[Item], seen: MergedReferences) -> list[Item]:
        """What a run that goes on from item `at` does in place of the items `before`, by the ids of this run."""
        ids = dict(zip((i.node.id for i in run.raw[at:]), (i.node.id for i in self.raw[end:]), strict=True))
        rename = renaming(ids)
        found: list[Item] = []
        for item, raw, common, here in zip(run.items[at:], run.raw[at:], before, self.raw[end:], strict=True):
            if item is raw and raw.node == here.node:
                found.append(common)
                continue
            node = replace(mapped(item.node, rename), id=here.node.id, control=here.node.control)
            if item is raw and node == here.node:
                found.append(common)
                continue
            given = zip(holes(node), holes(here.node), holes(common.node), strict=True)
            found.append(common._replace(node=filled(common.node, [_newer(*each, seen) for each in given])))
        return found


@dataclass(slots=True)
class _Way:
    """An answer, what happens on it up to where all meet again, and what it makes of each item that follows."""

    values: Group
    items: list[Item]
    following: list[Item]


def _newer(mine: Expression, theirs: Expression, now: Expression, seen: MergedReferences) -> Expression:
    """What another run mentions in place of what this one did (`theirs`) and does `now`: only where it is something else."""
    if mine == theirs:
        return now
    parts, others, current = parts_of(mine), parts_of(theirs), parts_of(now)
    if parts is None or others is None or current is None or not parts[0] == others[0] == current[0]:
        return seen.expression(mine)
    return parts[0].made([_newer(*each, seen) for each in zip(parts[1], others[1], current[1], strict=True)])


def _forks_in(items: Sequence[Item]) -> set[str]:
    return {item.node.id for item in items if isinstance(item.node, Fork)}


class _Cover:
    """Makes the runs that follow every answer once, nearest to the first run first."""

    def __init__(self, walk: Walker, loosen: Loosen) -> None:
        self._walk = walk
        self._loosen = loosen
        self._preferred: dict[object, Group] = {}
        self._asked: set[object] = set()
        self._runs = 0
        self.root = self._run([], (), None)
        waiting = deque([self.root])
        while waiting:
            waiting.extend(self._parted(waiting.popleft()))

    def _parted(self, run: _Run) -> list[_Run]:
        """The runs that part from a run, where it is not like the one that it parted from itself."""
        found: list[_Run] = []
        for number in range(run.first, len(run.decisions) if run.parent is None else run.cut.number):
            decision = run.decisions[number]
            if not self._is_new(decision, run.depth):
                continue
            run.partings[number] = []
            for other in (n for n in range(len(decision.groups)) if n != decision.taken):
                child = self._run([*run.decisions[:number], decision.instead(other)], run.nodes, run)
                child.rejoin(run, decision.at)
                run.partings[number].append((decision.groups[other], child))
                found.append(child)
        return found

    def _is_new(self, decision: Decision, depth: int) -> bool:
        """Whether a question was not followed yet; of a loop that goes on and on, whether none like it in other rounds was."""
        exact, alike = (decision.place, decision.on, decision.groups), decision.place
        goes_on = self._runs > MAX_RUNS or depth > MAX_DEPTH or decision.recursive
        known = (alike if goes_on else exact) in self._asked
        self._asked.update((exact, alike))
        return not known

    def _run(self, script: list[Decision], before: Sequence[Node], parent: _Run | None) -> _Run:
        self._runs += 1
        path = self._walk(script, _Preferring(self._preferred), before)
        for decision in path.decisions[len(script) :]:
            self._preferred.setdefault((decision.place, decision.on), decision.values)
            self._preferred.setdefault(decision.place, decision.values)
        return _Run(path, self._loosen(path.nodes), len(script), parent)


class _Preferring:
    """Answers as the runs before did, and in later rounds of a loop with the next answer."""

    def __init__(self, preferred: dict[object, Group]) -> None:
        self._preferred = preferred
        self._asked: Counter[object] = Counter()

    def __call__(self, decision: Decision) -> int:
        self._asked[decision.place] += 1
        exact = self._preferred.get((decision.place, decision.on))
        if exact in decision.groups:
            return decision.groups.index(exact)
        known = self._preferred.get(decision.place)
        first = decision.groups.index(known) if known in decision.groups else 0
        return _answer(first, self._asked[decision.place], len(decision.groups))
