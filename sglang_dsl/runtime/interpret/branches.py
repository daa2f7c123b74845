"""Forks and joins: leases for the parent's prompt, and races that end the moment they are decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ...errors import BranchError, DslError, SpecError
from ...ir.execution import MISSING, Outcome
from ...ir.nodes import Fork, Join, references_in, taking_part
from ...ir.outcome import PathText
from ...ir.semantics import Count, Ended, Verdict, ballot_of, evaluate
from .entries import Entry, said_by
from .machine import Machine
from .prompts import entries_between
from .user_calls import UserCalls, keep_context
from .user_code import UserCallResult


def begin_fork(machine: Machine, entry: Entry) -> None:
    """The parent's text is known: keep its state until each branch has made its first call."""
    if not isinstance(entry.node, Fork):
        return
    machine.finish(entry, Outcome())
    prompt = machine.default.prompt_after(entry)
    if entry.node.size < 2 or not prompt.ids:
        return
    model = machine.default
    machine.leases.take(entry, model.target, model.namespace, prompt.ids, entry.node.size)


def check_fork(machine: Machine, entry: Entry) -> None:
    """Raise BranchError for a fork without branches."""
    if isinstance(entry.node, Fork) and entry.node.size < 1:
        raise BranchError(f"fork {entry.id!r} has {entry.node.size} branches", hint="fork into at least one branch")


def check_join(machine: Machine, entry: Entry) -> None:
    """What the border can see of a join: a fork that is one, as many branches as it has, a registered key.

    Raises:
        BranchError, SpecError.
    """
    join = entry.node
    if not isinstance(join, Join):
        return
    fork = entry.scope.find(join.fork).node
    if not isinstance(fork, Fork):
        raise BranchError(f"join {entry.id!r} names {join.fork!r}, which is no fork")
    if len(join.tips) != fork.size or len(join.values) != fork.size:
        raise BranchError(f"join {entry.id!r} names {len(join.tips)} of the {fork.size} branches of {join.fork!r}")
    if join.key is not None and join.key not in machine.registry:
        raise SpecError(f"no join key is registered as {join.key!r}", origin=join.origin)
    if any(not 0 <= index < fork.size for index in join.skipped):
        raise BranchError(f"join {entry.id!r} skips {list(join.skipped)} of the {fork.size} branches of {join.fork!r}")
    most = fork.size - len(set(join.skipped))
    if join.k is not None and not 1 <= join.k <= most:
        raise SpecError(f"k={join.k} of the join is out of range", hint=f"give 1 to {most}", origin=join.origin)
    if join.key is not None:
        keep_context(entry)
    machine.leases.close(entry.scope.find(join.fork), range(fork.size))


def begin_join(machine: Machine, entry: Entry) -> None:
    """Watch the branches; those that have ended already count in branch order."""
    if isinstance(entry.node, Join):
        Race(machine, entry, entry.node).begin()


class Race:
    """A join while its branches run: counts them in, and ends the losers once `decide` has a verdict."""

    def __init__(self, machine: Machine, entry: Entry, join: Join) -> None:
        self.machine = machine
        self.entry = entry
        self.join = join
        self.fork = entry.scope.find(join.fork)
        self.size = len(join.tips)
        self.taking_part = taking_part(join, range(self.size))
        self.count = Count(join, self.size)
        self.awaited: dict[int, set[Entry]] = {}
        self.key: Callable[[Any], Any] | None = machine.registry.get(join.key or "")

    def begin(self) -> None:
        """Register with everything that is still open, then look at what is there."""
        past: list[tuple[int, int]] = []
        self.fork.races.append(self)
        for branch in self.taking_part:
            sources = self._sources(branch)
            failed = any(source.error for source in sources)
            self.awaited[branch] = set() if failed else {source for source in sources if not source.ended}
            for source in self.awaited[branch]:
                source.watchers.append(partial(self._source_ended, branch))
            if not self.awaited[branch]:
                past.append((max(source.order for source in sources), branch))
        for _, branch in sorted(past):
            self.count.add(self._end_of(branch))
        self._decide()

    def _sources(self, branch: int) -> list[Entry]:
        """What the branch has to end before its value is there: its tip first."""
        scope, expression = self.entry.scope, self.join.values[branch]
        return [scope.find(self.join.tips[branch]), *(scope.find(r.node_id) for r in references_in(expression))]

    def _source_ended(self, branch: int, source: Entry) -> None:
        awaited = self.awaited[branch]
        if self.entry.ended or source not in awaited:
            return
        awaited.discard(source)
        if source.error is not None:
            awaited.clear()
        if not awaited:
            self.count.add(self._end_of(branch))
            self.machine.attempt(self.entry, self._decide)

    def _end_of(self, branch: int) -> Ended:
        failed = [source.error for source in self._sources(branch) if source.error is not None]
        if failed:
            return Ended(branch, error=failed[0])
        expression = self.join.values[branch]
        if expression is None:
            return Ended(branch, MISSING)
        try:
            value = evaluate(expression, self.machine.lookup(self.entry))
            return Ended(branch, value, ballot=ballot_of(self.join, value))
        except DslError as error:  # this branch's failure, not the join's
            return Ended(branch, error=error)

    def _decide(self) -> None:
        if self.key is not None and not self.count.running:
            good = sorted(self.count.good, key=lambda b: b.branch)
            if good:
                self._ask(self.key, good)
                return
        verdict = self.count.verdict()
        if verdict is not None:
            self._end(verdict)

    def _ask(self, key: Callable[[Any], Any], good: Sequence[Ended]) -> None:
        """Have the program's own key called for each branch, then see whose is the highest."""
        what = f"the key of the join of {self.join.name or self.join.fork!r}"

        def ranked(answers: Sequence[UserCallResult]) -> None:
            failed = next((answer for answer in answers if answer.error is not None), None)
            if failed is not None:
                self._end(self.count.key_failed(failed.said, failed.error))
                return
            ranks = [answer.value for answer in answers]
            if all(type(rank) in (int, float, bool) for rank in ranks):
                won([UserCallResult(_highest(ranks))])
            else:  # comparing objects of the user's is user code, too
                UserCalls(self.machine, self.entry, [partial(_highest, ranks)], won, what=what).begin()

        def won(answers: Sequence[UserCallResult]) -> None:
            index, error, said = answers[0]
            if error is not None:
                self._end(self.count.key_failed(said, error))
            else:
                self._end(Verdict(good[index].value, (good[index].branch,)))

        asked = [partial(key, branch.value) for branch in good]
        UserCalls(self.machine, self.entry, asked, ranked, what=what).begin()

    def _end(self, verdict: Verdict) -> None:
        self.fork.races.remove(self)
        if self.join.cancel_rest:
            self.machine.when_body_rests(self._end_losers)
        if verdict.error is not None:
            self.machine.fail(self.entry, verdict.error)
            return
        said = self._said()
        outcome = Outcome(value=verdict.value, text=said.text, torn=said.torn, winners=verdict.winners)
        self.machine.finish(self.entry, outcome)

    def _end_losers(self) -> None:
        """End what nobody wants any more. Only once the program rests: until then it may write another join of this fork, whose
        value must not depend on how soon this one was decided.
        """
        wanted = {branch for race in self.fork.races for branch in race.awaits()}
        running = set(self.taking_part) - {branch.branch for branch in self.count.ended} - wanted
        if not running:
            return
        for child in list(self.fork.children):
            if child.node.branch in running:
                self.machine.cancel(child, f"the join of {self.join.name or self.join.fork!r} was decided without it")
        self.machine.leases.close(self.fork, running)

    def awaits(self) -> Iterator[int]:
        """The branches whose end may still matter to it."""
        if not self.entry.ended:
            yield from (branch for branch, sources in self.awaited.items() if sources)

    def _said(self) -> PathText:
        if self.join.mode != "concat":
            return PathText()
        tips = (self.entry.scope.find(tip) for tip in taking_part(self.join, self.join.tips))
        return said_by(entry for tip in tips for entry in entries_between(self.fork, tip))


def _highest(ranks: Sequence[Any]) -> int:
    """Where the highest stands; of equal ones, the first."""
    return max(range(len(ranks)), key=ranks.__getitem__)
