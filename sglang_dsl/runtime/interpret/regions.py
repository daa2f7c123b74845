"""Switch, loop and map: sub-graphs executed inside a run.

The nodes of a sub-graph become entries of the run, under ids of their own: `region/arm`, `region/iteration` or
`region/item` in front. Their roots hang on a door, which stands where the region's text stands so far:

    context --- region ------------------ what follows
                  '- door - arm's nodes -'  (its last text is where the region's text stands)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ...errors import GraphError
from ...ir.execution import Outcome
from ...ir.graph import Graph
from ...ir.nodes import Expression, Loop, Map, Switch, references_in
from ...ir.outcome import PathText
from ...ir.semantics import arm_of, evaluate, same
from ..schedule.request import Lineage
from .entries import Entry, Scope, last_of, said_up_to
from .machine import Machine
from .user_calls import keep_context


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
        body.door.claim = machine.leases.claim(entry, index)
        body.door.lineage = Lineage(entry.id, index, len(items), entry.lineage)
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
        idle = last is body.door  # a body that appends nothing repeats for nothing
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
        self.door = Entry.door(region, self.scope)
        self.door.anchor = region if isinstance(region.node, Map) else stands_at.anchor if stands_at else None

    def said(self, last: Entry) -> PathText:
        """The text from where it starts to `last`, which has ended."""
        return said_up_to(last, self.door)

    def lookup(self, node_id: str) -> Any:
        """The value of a node, seen from inside."""
        return self._machine.lookup(self.door)(node_id)

    def run(
        self,
        result: Expression | None,
        ended: Callable[[Any, Entry], None],
        also: Iterable[Expression] = (),
    ) -> None:
        """Take all nodes in; once its last text and what `result` and `also` mention are there, call `ended`.

        The region fails with the first of these that fails, once all of them have ended.
        """
        entries = self._machine.take(self._graph, self.scope, self.door)
        last = last_of(entries) or self.door
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
