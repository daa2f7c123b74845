"""What a body does beyond a Break: the same for every answer that the question there may get.

A run ends where the body asks what only a model can say. Where a branch of a fork does, the other branches and what comes after
them do not all hang on the answer: they are found by running the body again with made-up answers, several ways, and keeping what
all of them do. The branch itself ends at its Break:

    answer no:   x0 Break end0     x1 Break end1     last
    answer yes:  x0 Break y0 end0  x1 Break y1 end1  last        =>    x0 Break  x1 Break  last

So what a graph holds beyond a Break is less than a run does, never more that hangs on a guess. The graph says that it is
incomplete, its counts are lower bounds, and nothing exports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...ir.graph import Graph
from ...ir.nodes import Break, Join, Node, Reference
from ...ir.verify import findings
from .decisions import Decision
from .guesses import Answers, Guesses
from .items import Item, Line, link, loosen, translated
from .path import Path


def went_on(stopped: Path, run: Callable[[Guesses], Path], script: Sequence[Decision], inputs: Sequence[Node]) -> Path:
    """The run that stopped at a Break, with what every answer there leads to.

    run: runs the body again, with guesses. script: the decisions that the run repeats, also those beyond the Break. inputs: the
    nodes of the program's unknown arguments.
    """
    answers: Answers = {(d.on, d.groups): d.taken for d in [*script, *stopped.decisions]}
    runs: list[tuple[Path, Guesses]] = []
    for first, alternating in ((0, False), (1, False), (0, True), (1, True)):
        guesses = Guesses(first, alternating=alternating, answers=answers)
        runs.append((run(guesses), guesses))
    ended = [(p, g) for p, g in runs if p.broken is None]
    for usable in (
        ended,
        [(p, g) for p, g in runs if p.followed],
        runs,
    ):  # what a guess has ended is less, and not wrong
        if usable and _all_vary([guesses for _, guesses in usable]):
            _take(stopped, [path for path, _ in usable], script, inputs)
            break
    if len(stopped.decisions) < len(script):
        stopped.diverge()
    return stopped


def _take(stopped: Path, runs: Sequence[Path], script: Sequence[Decision], inputs: Sequence[Node]) -> None:
    """Let it be what all runs did, if that is a graph and repeats the script."""
    composed = _composed(runs)
    if composed is None:
        return
    nodes, decisions = composed
    asked = [(d.on, d.groups, d.taken) for d in decisions[: len(script)]]
    if asked == [(d.on, d.groups, d.taken) for d in script] and not findings(Graph([*inputs, *nodes])):
        stopped.nodes, stopped.decisions = nodes, decisions


def _all_vary(runs: Sequence[Guesses]) -> bool:
    """Whether nothing that was made up is the same in all runs: it would look as if the body had said it."""
    first = runs[0].made_up
    return all(any(run.made_up.get(question) != number for run in runs[1:]) for question, number in first.items())


def _composed(paths: Sequence[Path]) -> tuple[list[Node], list[Decision]] | None:
    """The nodes and decisions that all runs have."""
    runs = [loosen(path.nodes) for path in paths]
    kept = _common(runs)
    first = paths[0]
    items = [runs[0][n] for n in kept]
    if not any(isinstance(item.node, Break) for item in items):
        return None
    present = {item.node.id for item in items}
    everywhere = [{(d.on, d.groups, d.taken) for d in path.decisions} for path in paths[1:]]
    decisions = [
        replace(d, at=sum(n < d.at for n in kept))
        for d in first.decisions
        if all((d.on, d.groups, d.taken) in others for others in everywhere)
        and (d.on.node_id in present or d.on.node_id not in {node.id for node in first.nodes})
    ]
    return list(link(items)), decisions


def _common(runs: Sequence[Sequence[Item]]) -> list[int]:
    """The numbers of those items of the first run that all others have too, in the same order, that mention no others and stand
    behind no Break of their line.
    """
    places = [{item.node.id: n for n, item in enumerate(run)} for run in runs]
    dropped = {node_id for place in places for node_id in place if any(node_id not in other for other in places)}
    last = [-1] * len(runs)
    kept: list[int] = []
    ended: set[Line] = set()
    for number, item in enumerate(runs[0]):
        where = [place.get(item.node.id, -1) for place in places]
        same = all(
            n > before and (run[n].line, run[n].node) == (item.line, item.node)
            for run, n, before in zip(runs, where, last, strict=True)
        )
        if same and item.line not in ended and dropped.isdisjoint(_needed(item)):
            kept.append(number)
            last = where
            if isinstance(item.node, Break):
                ended.add(item.line)
        else:
            dropped.add(item.node.id)
    return kept


def _needed(item: Item) -> set[str]:
    """The nodes without which an item is nothing."""
    needed = set() if item.line is None else {item.line[0]}
    if isinstance(item.node, Join):
        needed.add(item.node.fork)

    def note(reference: Reference) -> Reference:
        needed.add(reference.node_id)
        return reference

    translated(item.node, note)
    return needed
