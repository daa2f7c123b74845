"""Where a run branches: forks and joins, which may end the branches that lose, and sub-graphs: switch, loop and map.

A join is a race: it counts the branches in as they end, and the moment it is decided those that nobody waits for any more are
cancelled (`Race._end_losers`).

The nodes of a sub-graph become entries of the run, under ids of their own: `region/arm`, `region/iteration` or
`region/item` in front. The first of them hang on the root of the body, which stands where the region's text stands so far:

    context --- region ------------------ what follows
                  '- body root - arm's nodes -'  (its last text is where the region's text stands)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ...errors import BranchError, DslError, GraphError, SpecError
from ...ir.execution import MISSING, Outcome
from ...ir.graph import Graph
from ...ir.nodes import Expression, Fork, Join, Loop, Map, Switch, references_in, taking_part
from ...ir.outcome import PathText
from ...ir.semantics import Count, Ended, Verdict, arm_of, ballot_of, evaluate, same
from ..schedule.request import Lineage
from .entries import Entry, Scope, last_of, said_by, said_up_to
from .machine import Machine
from .prompts import entries_between
from .tools import UserCalls, keep_context
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
        self.fork.undecided.append(self.awaits)
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
        self.fork.undecided.remove(self.awaits)
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
        wanted = {branch for awaits in self.fork.undecided for branch in awaits()}
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


def check_region(machine: Machine, entry: Entry) -> None:
    """The nodes inside see the context variables of the statement that the region comes from."""
    keep_context(entry)


def begin_switch(machine: Machine, entry: Entry) -> None:
    """Run the one arm that names the value, or the arm that names none.

    Raises:
        GraphError: no arm takes the value.
    """
    switch = entry.node
    if not isinstance(switch, Switch):
        return
    value = evaluate(switch.on, machine.lookup(entry))
    index = arm_of(switch.arms, value)
    if index is None:
        raise GraphError(f"no arm of switch {entry.id!r} takes the value {value!r}", hint="give it a default arm")
    arm = switch.arms[index]
    body = SubgraphRun(machine, entry, arm.graph, str(index), entry.context)
    body.run(arm.result, lambda value, last: _finish_region(machine, entry, value, last, body.said(last)))


def begin_loop(machine: Machine, entry: Entry) -> None:
    """Run the first iteration."""
    if isinstance(entry.node, Loop):
        _iterate(machine, entry, entry.node, 0, entry.context, PathText())


def begin_map(machine: Machine, entry: Entry) -> None:
    """Run the body once per item, all at once.

    Raises:
        GraphError: the items are no list.
    """
    node = entry.node
    if not isinstance(node, Map):
        return
    items = evaluate(node.items, machine.lookup(entry))
    if not isinstance(items, list):
        raise GraphError(f"map {entry.id!r} needs a list of items, not {type(items).__name__}")
    results: list[Any] = [None] * len(items)
    _lease_for_items(machine, entry, len(items))
    open_items = set(range(len(items)))

    def ended(index: int, value: Any, last: Entry) -> None:
        results[index] = value
        open_items.discard(index)
        if not open_items:
            machine.finish(entry, Outcome(value=results))

    if not items:
        machine.finish(entry, Outcome(value=[]))
    for index, item in enumerate(items):
        body = SubgraphRun(machine, entry, node.body, str(index), entry)
        body.scope.bound[node.item] = item
        body.root.claim = machine.leases.claim(entry, index)
        body.root.lineage = Lineage(entry.id, index, len(items), entry.lineage)
        body.run(node.result, partial(ended, index))
        machine.leases.close(entry, [index])


def _lease_for_items(machine: Machine, entry: Entry, size: int) -> None:
    prompt = machine.default.prompt_after(entry)
    if size >= 2 and prompt.ids:
        model = machine.default
        machine.leases.take(entry, model.target, model.namespace, prompt.ids, size)


def _iterate(
    machine: Machine, entry: Entry, loop: Loop, iteration: int, stands_at: Entry | None, said: PathText
) -> None:
    """One more iteration. `said`: by those before."""
    body = SubgraphRun(machine, entry, loop.body, str(iteration), stands_at)

    def ended(value: Any, last: Entry) -> None:
        stop = loop.until is not None and same(evaluate(loop.until, body.lookup), loop.stop_value)
        idle = last is body.root  # a body that appends nothing repeats for nothing
        body_said = body.said(last)
        said.add(body_said.text, body_said.torn)
        if stop or idle or iteration + 1 >= loop.limit:
            _finish_region(machine, entry, value, last, said)
        else:
            _iterate(machine, entry, loop, iteration + 1, last, said)

    until = () if loop.until is None else (loop.until,)
    body.run(loop.result, ended, also=until)


def _finish_region(machine: Machine, entry: Entry, value: Any, last: Entry, said: PathText) -> None:
    machine.place(entry, last.anchor)
    machine.finish(entry, Outcome(value=value, text=said.text, torn=said.torn))


class SubgraphRun:
    """One execution of a sub-graph. `stands_at`: the entry whose text its roots continue."""

    def __init__(self, machine: Machine, region: Entry, graph: Graph, label: str, stands_at: Entry | None) -> None:
        self._machine = machine
        self._region = region
        self._graph = graph
        self.scope = Scope(f"{region.id}/{label}/", region.scope, region)
        self.root = Entry.body_root(region, self.scope)
        self.root.anchor = region if isinstance(region.node, Map) else stands_at.anchor if stands_at else None

    def said(self, last: Entry) -> PathText:
        """The text from where it starts to `last`, which has ended."""
        return said_up_to(last, self.root)

    def lookup(self, node_id: str) -> Any:
        """The value of a node, seen from inside."""
        return self._machine.lookup(self.root)(node_id)

    def run(
        self,
        result: Expression | None,
        ended: Callable[[Any, Entry], None],
        also: Iterable[Expression] = (),
    ) -> None:
        """Take all nodes in; once its last text and what `result` and `also` mention are there, call `ended`.

        The region fails with the first of these that fails, once all of them have ended.
        """
        entries = self._machine.take(self._graph, self.scope, self.root)
        last = last_of(entries) or self.root
        mentioned = [self.scope.find(r.node_id) for e in (result, *also) for r in references_in(e)]
        sources = list(dict.fromkeys((last, *mentioned)))
        awaited = {source for source in sources if not source.ended}

        def source_ended(source: Entry) -> None:
            awaited.discard(source)
            if not awaited and not self._region.ended:
                self._machine.attempt(self._region, all_ended)

        def all_ended() -> None:
            if failure := next((source.error for source in sources if source.error is not None), None):
                self._machine.fail(self._region, failure)
            else:
                ended(None if result is None else evaluate(result, self.lookup), last)

        for source in awaited:
            source.watchers.append(source_ended)
        if not awaited:
            all_ended()
