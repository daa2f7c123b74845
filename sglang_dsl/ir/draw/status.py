"""What a run did with each node: the one account that all pictures tell.

planned     there was no run
done        it has its value, or its text stands
failed      it went wrong itself; `error` says how
cancelled   it was ended before it had a value
lost        it ended, in a branch that its join did not take
unreached   it never ran: the run took another way, ended before, or something it needs failed

And when it happened: the timeline is trace-event JSON, for chrome://tracing, Perfetto and Speedscope. Source: "Trace Event
Format" of the Catapult project (complete events "X", counters "C", metadata "M"; microseconds).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from ...errors import CancelledError, DslError, SpecError
from ..execution import MISSING, Meta, Outcome
from ..graph import Graph
from ..nodes import Break, Gen, Input, Join, Loop, Map, Node, Select, Switch, ToolNode, data_of, subgraphs
from ..operations import text_of
from ..semantics import ballot_of, evaluate
from ..values import RecordedError
from .labels import in_graph, instances, names_of, printable, shorten, title, ways_taken

State: TypeAlias = Literal["planned", "done", "failed", "cancelled", "lost", "unreached"]
STRUCK_OUT: frozenset[State] = frozenset({"cancelled", "lost"})
WORDS: Mapping[State, str] = {
    "failed": "failed",
    "cancelled": "cancelled",
    "lost": "not taken by the join",
    "unreached": "not run",
}
CHOSEN_BY = ("first", "quorum", "vote", "best")  # modes of a join that leave branches behind
ERROR_CHARACTERS = 110
FACT_CHARACTERS = 26
Errors: TypeAlias = Mapping[str, BaseException]


@dataclass(frozen=True, slots=True)
class Status:
    """How one node fared. error: all that is known of its failure. facts: what was asked for and came out, in short:
    attempts, scores of choices, votes, probabilities of tokens.
    """

    state: State = "planned"
    error: str = ""
    facts: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The state in words, with the error; empty for what is done or was never to run."""
        return ": ".join(filter(None, (WORDS.get(self.state, ""), shorten(self.error, ERROR_CHARACTERS))))


PLANNED = Status()


@dataclass(frozen=True, slots=True)
class RunAccount:
    """All that a picture is made of. outcomes, errors, status: by the ids the nodes have in the graph and its sub-graphs;
    empty without a run. Of a loop the last turn's, of a map the last item's; of errors the first that is no cancellation.
    """

    graph: Graph
    outcomes: Mapping[str, Outcome]
    errors: Errors
    status: Mapping[str, Status]

    @classmethod
    def of(cls, graph: Graph, outcomes: Mapping[str, Outcome], errors: Errors) -> RunAccount:
        """What a run gave, by the ids of the run (see `instances`). What it does not know of is concluded from what it
        hangs on.
        """
        given, failed = dict(in_graph(graph, outcomes)), _worst(in_graph(graph, errors))
        status: dict[str, Status] = {}
        if given or failed:
            _Reader(given, failed, status).read(graph, came_here=True)
        return cls(graph, given, failed, status)

    @property
    def ran(self) -> bool:
        """Whether there was a run."""
        return bool(self.status)


def is_cancelled(error: BaseException) -> bool:
    """Whether an error says that something was ended, not that it went wrong."""
    if isinstance(error, RecordedError):
        return error.recorded_code == CancelledError.code
    return isinstance(error, CancelledError)


def words_of(error: BaseException) -> str:
    """An error in one line: its code or type, and what happened."""
    code = error.recorded_code if isinstance(error, RecordedError) else getattr(error, "code", type(error).__name__)
    what = error.what if isinstance(error, DslError) else str(error)
    return printable(" ".join(f"{code}: {what}".split()))


def _worst(found: Iterator[tuple[str, BaseException]]) -> dict[str, BaseException]:
    """One error per node: of several executions the first that went wrong, rather than one that was cancelled."""
    kept: dict[str, BaseException] = {}
    for node_id, error in found:
        if node_id not in kept or (is_cancelled(kept[node_id]) and not is_cancelled(error)):
            kept[node_id] = error
    return kept


class _Reader:
    """Owner: one `RunAccount.of`. Nodes come in append order, so what a node hangs on has its status before it."""

    def __init__(self, outcomes: Mapping[str, Outcome], errors: Errors, found: dict[str, Status]) -> None:
        self.outcomes = outcomes
        self.errors = errors
        self.found = found

    def read(self, graph: Graph, *, came_here: bool) -> None:
        losers = _losing_branches(graph, self.outcomes)
        in_lost: set[str] = set()
        for node in graph:
            state = self._state(node, graph) if came_here else "unreached"
            if node.context in in_lost or (node.context, node.branch) in losers:
                in_lost.add(node.id)
                state = "lost" if state == "done" else state
            error = self.errors.get(node.id)
            words = words_of(error) if error is not None and state in ("failed", "cancelled") else ""
            self.found[node.id] = Status(state, words, tuple(facts_of(node, self.outcomes)))
            taken = ways_taken(node, self.outcomes, self.errors)
            for number, inner in enumerate(subgraphs(node)):
                self.read(inner, came_here=came_here and state != "unreached" and taken[number])

    def _state(self, node: Node, graph: Graph) -> State:
        error = self.errors.get(node.id)
        if error is not None:
            if is_cancelled(error):
                return "cancelled"
            return "unreached" if self._is_inherited(node, error, graph) else "failed"
        if node.id in self.outcomes:
            return "done"
        if isinstance(node, Break):
            return "planned"
        if isinstance(node, Gen | Select | ToolNode):
            return "unreached"
        if isinstance(node, Switch | Loop | Map) and any(
            e is not None for inner in subgraphs(node) for e in map(self.errors.get, (n.id for n in inner))
        ):
            return "failed"
        return "unreached" if any(self._stands_in_the_way(i) for i in _needs(node)) else "done"

    def _stands_in_the_way(self, node_id: str) -> bool:
        return node_id in self.found and self.found[node_id].state in ("failed", "cancelled", "unreached")

    def _is_inherited(self, node: Node, error: BaseException, graph: Graph) -> bool:
        """Whether something the node depends on failed of the very same cause."""
        words = words_of(error)
        return any(
            source in self.errors and (self.errors[source] is error or words_of(self.errors[source]) == words)
            for source in _needs(node)
        )


def _needs(node: Node) -> Iterator[str]:
    if node.context is not None:
        yield node.context
    if not isinstance(node, Input):
        yield from data_of(node)
    yield from node.control
    if isinstance(node, Join):
        yield from node.tips


def _losing_branches(graph: Graph, outcomes: Mapping[str, Outcome]) -> set[tuple[str, int]]:
    """(fork, branch) of the branches that no join took. One that some join waits for whatever it gives has not lost."""
    losers: set[tuple[str, int]] = set()
    wanted: set[tuple[str, int]] = set()
    for node in graph:
        if not isinstance(node, Join):
            continue
        every = {(node.fork, branch) for branch in range(len(node.tips))}
        winners = outcomes[node.id].winners if node.id in outcomes else None
        if node.mode not in CHOSEN_BY or winners is None:
            wanted |= every
        else:
            taken = {(node.fork, branch) for branch in winners}
            wanted |= taken
            losers |= every - taken
    return losers - wanted


# --- what was asked for and came out ----------------------------------------------------------------------------------


def facts_of(node: Node, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Attempts, scores of choices, votes of a join, probabilities of tokens: where there are any."""
    outcome = outcomes.get(node.id)
    if outcome is None:
        return
    if outcome.meta is not None:
        yield from _facts_of_call(outcome.meta)
    if isinstance(node, Join) and outcome.winners is not None:
        yield from _facts_of_join(node, outcome, outcomes)


def _facts_of_call(meta: Meta) -> Iterator[str]:
    if meta.attempts > 1:
        yield f"{meta.attempts} attempts"
    if meta.choices:
        best = sorted(meta.choices, key=lambda choice: -choice.score)
        yield "scores " + ", ".join(f"{shorten(c.text, FACT_CHARACTERS)} {c.score:.2f}" for c in best[:4])
    if meta.token_scores:
        chances = [math.exp(score.logprob) for score in meta.token_scores]
        yield f"token probability {sum(chances) / len(chances):.2f}, lowest {min(chances):.2f}"


def _facts_of_join(join: Join, outcome: Outcome, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    if join.mode in ("vote", "quorum"):
        values = list(_values_of(join, outcomes))
        votes = Counter(ballot_of(join, value) for value in values)
        shown = {ballot_of(join, value): shorten(text_of(value), FACT_CHARACTERS) for value in reversed(values)}
        yield "votes " + ", ".join(f"{shown[ballot]} {count}" for ballot, count in votes.most_common(4))
    if join.mode in CHOSEN_BY and outcome.winners:
        yield "taken: branch " + ", ".join(map(str, outcome.winners[:8])) + (" …" if len(outcome.winners) > 8 else "")


def _values_of(join: Join, outcomes: Mapping[str, Outcome]) -> Iterator[Any]:
    """The value of each branch that gave one."""
    for value in join.values:
        needed = () if value is None else data_of(Join(id="", fork="", values=(value,)))
        if value is None or any(node_id not in outcomes for node_id in needed):
            continue
        given = evaluate(value, lambda node_id: outcomes[node_id].value)
        if given is not MISSING:
            yield given


def unjoined(graph: Graph) -> set[tuple[str, int]]:
    """(fork, branch) of the branches that no join gathers: their text goes nowhere."""
    gathered = {(node.fork, branch) for node in graph if isinstance(node, Join) for branch in range(len(node.tips))}
    begun = {(node.context, node.branch) for node in graph if node.context is not None and node.branch is not None}
    return begun - gathered


# --- timeline --------------------------------------------------------------------------------------------------------


class TimelineBar(NamedTuple):
    """A finished model call: its node and that one's kind, its id in the run, what it is called, what is known about it."""

    node: str
    kind: str
    id: str
    name: str
    meta: Meta


def draw_timeline(graph: Graph, outcomes: Mapping[str, Outcome]) -> str:
    """The calls of a run as trace events: one bar per call, in as few lanes as its overlaps need.

    Raises:
        SpecError: there are no outcomes with times.
    """
    calls = calls_of_run(graph, outcomes)
    if not calls:
        raise SpecError(
            "a timeline needs the outcomes of a run", hint="draw(result.graph, 'trace', outcomes=result.outcomes)"
        )
    events = [_metadata(graph.name), *_call_events(calls), *_load_events(calls)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False) + "\n"


def calls_of_run(graph: Graph, outcomes: Mapping[str, Outcome]) -> list[TimelineBar]:
    """The calls that finished. outcomes: by the ids of the run."""
    names = names_of(graph)
    return [
        TimelineBar(made.node.id, made.node.kind, made.id, title(made.node, names), made.given.meta)
        for made in instances(graph, outcomes)
        if made.given.meta is not None
    ]


def _metadata(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": name or "program"}}


def _call_events(calls: list[TimelineBar]) -> Iterator[dict[str, Any]]:
    free_at: list[float] = []  # when each lane is free again
    for call in sorted(calls, key=lambda c: (c.meta.started_s, c.meta.finished_s)):
        lane = next((i for i, at in enumerate(free_at) if at <= call.meta.started_s), len(free_at))
        free_at[lane : lane + 1] = [call.meta.finished_s]
        yield _event(call, lane, call.name, call.meta.started_s, call.meta.finished_s)
        if call.meta.started_s < call.meta.first_token_s <= call.meta.finished_s:
            yield _event(call, lane, "prefill", call.meta.started_s, call.meta.first_token_s)


def _event(call: TimelineBar, lane: int, name: str, start_s: float, end_s: float) -> dict[str, Any]:
    meta = call.meta
    return {
        "ph": "X",
        "pid": 1,
        "tid": lane + 1,
        "cat": call.kind,
        "name": name,
        "ts": round(start_s * 1e6, 1),
        "dur": round(max(end_s - start_s, 0) * 1e6, 1),
        "args": {
            "node": call.id,
            "prompt_tokens": meta.prompt_tokens,
            "cached_tokens": meta.cached_tokens,
            "computed_tokens": meta.computed_tokens,
            "generated_tokens": meta.generated_tokens,
            "finish": meta.finish_reason,
            "model": meta.model,
        },
    }


def _load_events(calls: list[TimelineBar]) -> Iterator[dict[str, Any]]:
    """How many calls run at each moment."""
    changes = sorted([(c.meta.started_s, 1) for c in calls] + [(c.meta.finished_s, -1) for c in calls])
    running = 0
    for at_s, change in changes:
        running += change
        yield {"ph": "C", "pid": 1, "tid": 0, "name": "calls", "ts": round(at_s * 1e6, 1), "args": {"running": running}}
