"""A node in a run: where it stands, who waits for it, what its text became, and its branch's share in a lease.

`Entry` is the node, `Scope` the graph that its references are looked up in. `Leases` keep the prompts of forks until each branch
has made its first call; `longest_path` says how much waits behind an entry: both are what the scheduler is told of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from ...errors import GraphError
from ...ir.execution import Outcome
from ...ir.nodes import Fork, Gen, Input, Join, Loop, Map, Node, Return, Select, Switch, ToolNode
from ...ir.outcome import PartialCharacters, PathText
from ..cache.keys import Namespace
from ..schedule.request import OUTERMOST, BranchOrder, LeaseId, Lineage, Request
from ..text.tokenizer import TextPiece, Turns
from .target import Target

NO_TURNS = Turns()
Status: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(slots=True, eq=False)
class LeaseClaim:
    """One branch's share in the lease of its fork's prompt.

    It is spent by the branch's first call, or by a fork below that takes a lease of its own; it is given back when the
    branch is `closed` and no node of it can spend it any more. `spenders` counts those that still can.
    """

    fork: Entry
    spenders: int = 0
    closed: bool = False
    spent: bool = False


@dataclass(slots=True, eq=False)
class Entry:
    """One node of one run. Owner: the run's Machine, under the run's lock.

    placed: the text up to and including this node is known, so what hangs on it in context may go on.
    anchor: the entry whose prompt stands after this node: itself if it adds text, else its context's.
    missing: how many signals (context placed, values there) it still waits for before it begins.
    adds_text: whether its prompt differs from its context's (or, for a fork, is a seam).
    """

    id: str
    node: Node
    scope: Scope
    context: Entry | None
    adds_text: bool = True
    future: Future[Outcome] | None = None  # made when somebody asks for it
    status: Status = "waiting"
    placed: bool = False
    anchor: Entry | None = None
    missing: int = 0
    outcome: Outcome | None = None
    error: Exception | None = None
    children: list[Entry] = field(default_factory=list)
    on_place: list[Entry] = field(default_factory=list)
    on_done: list[Entry] = field(default_factory=list)
    watchers: list[Callable[[Entry], None]] = field(default_factory=list)
    lineage: Lineage | None = None
    claim: LeaseClaim | None = None
    claims: dict[int, LeaseClaim] = field(default_factory=dict)  # forks: by branch
    lease: tuple[Target, LeaseId] | None = None  # forks
    undecided: list[Callable[[], Iterable[int]]] = field(
        default_factory=list
    )  # forks: of each join of it that is not decided, how to ask which branches it still waits for
    pieces: tuple[TextPiece, ...] = ()  # texts
    produced: CallOutput | None = None  # gens and selects
    variables: Context | None = None  # of the statement, where user code is called
    order: int = -1  # the how-manieth to end in its run
    turns: Turns = NO_TURNS  # of its path, as far as its nodes say; without their text
    place: BranchOrder = OUTERMOST  # which branches it stands in
    known: Entry | None = None  # the last one of its path whose text was known when it was taken in
    stop: Callable[[str], None] | None = None  # how to end what runs for it outside, with a reason

    @classmethod
    def body_root(cls, region: Entry, scope: Scope) -> Entry:
        """What the first nodes of a sub-graph hang on. It stands where its region's text stands so far."""
        root = cls(
            scope.prefix, _BODY_ROOT, scope, region, status="done", placed=True, claim=region.claim, turns=region.turns
        )
        root.place, root.known, root.lineage = region.place, region.known, region.lineage
        region.children.append(root)
        return root

    @property
    def heirs(self) -> Iterator[Entry]:
        """What hangs on it in context, the insides of a region included."""
        for child in self.children:
            if child.node is _BODY_ROOT:
                yield from child.heirs
            else:
                yield child

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status not in ("waiting", "running")

    @property
    def may_spend(self) -> bool:
        """Whether it may spend the claim of the branch it stands in."""
        return isinstance(self.node, (Gen, Select, Fork, Switch, Loop, Map))

    def below(self) -> Iterator[Entry]:
        """Itself and all that lies below in context, parents first."""
        stack = [self]
        while stack:
            entry = stack.pop()
            yield entry
            stack.extend(reversed(entry.children))


_BODY_ROOT = Node(id="")


@dataclass(frozen=True, slots=True)
class CallOutput:
    """What a call appended: its ids after the seam under `target`, `tail_text` beyond them, and the whole text.

    healed: the ids stand in for the prompt's last token, too.
    """

    target: Target
    token_ids: tuple[int, ...]
    text: str
    tail_text: str = ""
    healed: bool = False


def said_by(entries: Iterable[Entry]) -> PathText:
    """What entries say one after another, as one text; those that failed say nothing. A character is joined of what one model
    wrote only: what another wrote stands in its prompt as the text it was.
    """
    told = [(entry, outcome) for entry in entries if (outcome := entry.outcome) is not None and outcome.text]
    if not any(outcome.torn for _, outcome in told):
        return PathText("".join([outcome.text for _, outcome in told]))
    said, wrote = PathText(), None
    for entry, outcome in told:
        torn, by = outcome.torn, None if entry.produced is None else entry.produced.target
        if torn is not None and torn.head and wrote is not None and by is not None and by is not wrote:
            torn = PartialCharacters(b"", torn.tail)
        said.add(outcome.text, torn)
        wrote = by
    return said


def said_up_to(last: Entry | None, root: Entry | None = None) -> PathText:
    """What a context path down to `last` says, from behind `root` or from its beginning; without what has failed."""
    return said_by(_path(last, root))


def text_up_to(last: Entry | None) -> str:
    """The text of a context path from its beginning down to `last`."""
    path = _path(last, None)
    outcomes = [outcome for entry in path if (outcome := entry.outcome) is not None]
    torn = any(outcome.torn for outcome in outcomes)
    return said_by(path).text if torn else "".join([outcome.text for outcome in outcomes])


def _path(last: Entry | None, root: Entry | None) -> list[Entry]:
    path: list[Entry] = []
    while last is not None and last is not root:
        path.append(last)
        last = last.context
    return path[::-1]


def last_of(entries: Iterable[Entry]) -> Entry | None:
    """Where a sub-graph's own state ends: its last node outside all branches of its forks."""
    branched: set[Entry] = set()
    last = None
    for entry in entries:
        if entry.node.branch is not None or entry.context in branched:
            branched.add(entry)
        elif not isinstance(entry.node, (Input, Return)):
            last = entry
    return last


def passes_through(node: Node) -> bool:
    """Whether what hangs on this node in context need not wait for its value: it adds no text and is no seam."""
    return isinstance(node, (Input, Return, ToolNode, Map)) or (isinstance(node, Join) and node.mode != "concat")


@dataclass(slots=True, eq=False)
class Scope:
    """The entries a node's references can name: its own graph's, then those around it.

    prefix: stands in front of the ids of nodes in sub-graphs: region id, then arm, iteration or item. names: entries by their
    nodes' own ids. bound: inputs of this graph by node id.
    """

    prefix: str = ""
    outer: Scope | None = None
    region: Entry | None = None
    names: dict[str, Entry] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)

    def find(self, node_id: str) -> Entry:
        """The entry of that id, nearest first.

        Raises:
            GraphError: there is none.
        """
        scope: Scope | None = self
        while scope is not None:
            if node_id in scope.names:
                return scope.names[node_id]
            scope = scope.outer
        raise GraphError(f"node {node_id!r} is mentioned, but no node of that id was appended before")

    def encloses(self, entry: Entry) -> bool:
        """Whether `entry` is a region around this scope."""
        scope: Scope | None = self
        while scope is not None:
            if scope.region is entry:
                return True
            scope = scope.outer
        return False


@dataclass(slots=True)
class Leases:
    """The leases of the prompts of forks in one run: taken when the parent's text is known, counted down as branches make their first calls.
    Owner: the run's Machine.

    Every branch has a claim to its fork's lease; each claim is spent by one call, or given back, exactly once.
    """

    defer: Callable[[Callable[[], None]], None]  # has something done outside the run's lock
    forks: list[Entry] = field(default_factory=list)  # that have a lease

    def take(self, fork: Entry, target: Target, namespace: Namespace, prompt_ids: Sequence[int], children: int) -> None:
        """Keep a fork's prompt until `children` branches have spent their claims.

        It covers what the branch around the fork was promised, too, so that claim is given back.
        """
        fork.lease = (target, target.lease(prompt_ids, namespace, children))
        self.forks.append(fork)
        if fork.claim is not None:
            self._give_back(fork.claim)
        for claim in fork.claims.values():
            self.settle(claim)

    def claim(self, fork: Entry, branch: int) -> LeaseClaim:
        """The claim of one branch."""
        return fork.claims.setdefault(branch, LeaseClaim(fork))

    def spend(self, claim: LeaseClaim, target: Target) -> LeaseId | None:
        """The lease that a call to `target` has to name, if it is the first of the branch whose claim this is; else None."""
        if claim.spent or claim.fork.lease is None or claim.fork.lease[0] is not target:
            return None
        claim.spent = True
        return claim.fork.lease[1]

    def settle(self, claim: LeaseClaim) -> None:
        """Give a claim back once nothing can spend it any more."""
        if claim.closed and claim.spenders == 0:
            self._give_back(claim)

    def unspend(self, target: Target, request: Request) -> None:
        """A request that named a lease is not sent after all."""
        if request.lease is not None:
            self.defer(partial(target.release, request.lease, 1))

    def close(self, fork: Entry, branches: Iterable[int]) -> None:
        """No more nodes come in these branches."""
        for branch in branches:
            claim = self.claim(fork, branch)
            claim.closed = True
            self.settle(claim)

    def close_all(self) -> None:
        """No more nodes come at all."""
        for fork in self.forks:
            self.close(fork, range(getattr(fork.node, "size", 0)))

    def end(self) -> None:
        """No more calls come: end whatever lease is left."""
        for fork in self.forks:
            if fork.lease is not None:
                target, lease = fork.lease
                self.defer(partial(target.release, lease))
        self.forks.clear()

    def _give_back(self, claim: LeaseClaim) -> None:
        if claim.spent or claim.fork.lease is None:
            return
        claim.spent = True
        target, lease = claim.fork.lease
        self.defer(partial(target.release, lease, 1))


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
