"""Where a state appends and what it reads from there: one position in the growing graph.

    State, Branches  -- a Statement's nodes -->  Recorder.append  --> a Run       (LiveRecorder, in recorder.py)
    s[x], s.text     <-- values, outcomes ----  Recorder.read         or a trace  (Path, in tracing/path.py)

A Recorder is whoever takes the nodes: everything that differs between running and tracing is one of its methods. A Line is
one context path that grows. A Cursor is a place on a line, with the names of one scope: what a State is to the rest of the
frontend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..errors import DslError, Origin, ProgramError, UnknownNameError
from ..ir.execution import Outcome
from ..ir.graph import Graph
from ..ir.nodes import DictOf, Node, Objects, Piece, RoleBegin, RoleEnd
from ..ir.nodes import Expression as DataExpression
from ..ir.outcome import PathText
from .bindings import Bindings, Find, LocalBinding, NodeBinding
from .call_sites import CallSite, CallSites, caller_origin
from .expressions import Handle, Lazy

if TYPE_CHECKING:
    from .tools import Tool

Body: TypeAlias = Callable[["Cursor"], Any]  # of an arm or a loop, called where it appends
SILENT = frozenset({"fork", "return", "input", "tool"})  # node kinds that add no text
MOST_PATH_CHARACTERS = 64  # of a branch path in node ids: of deeper nesting a digest stands for what lies above


class Recorder(Protocol):
    """Who takes the nodes of a program. `graph` holds them; `max_depth` and `sampling` are the run's options."""

    graph: Graph
    sites: CallSites
    tracing: bool
    asynchronous: bool
    max_depth: int
    sampling: Mapping[str, Any]

    def append(self, nodes: Sequence[Node]) -> None:
        """Take the nodes of one statement. Raises what can be seen at once; then nothing was appended."""

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Make a Python callable known. Returns the key to name it by: `key`, made unique."""

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """A string as pieces of a Text node. A trace finds the values in it that do not exist yet."""

    def expression(self, value: Any, find: Find, origin: Origin) -> DataExpression:
        """A Python value as an expression. Raises ProgramError where it is not data."""

    def arguments(
        self, tool: Tool[..., Any], given: Mapping[str, Any], find: Find, origin: Origin
    ) -> tuple[DictOf, Objects | None]:
        """The arguments of a tool for the graph, and as the objects that they are where the graph does not say it all."""

    def read(self, bound: NodeBinding, timeout_s: float | None = None) -> Any:
        """The value of what is bound. Raises the cause where it failed; DeadlineError after `timeout_s`."""

    async def aread(self, bound: NodeBinding) -> Any:
        """Like `read`, for async bodies: waits without blocking the loop."""

    def future(self, node_id: str) -> Future[Outcome] | None:
        """Where a node's outcome will be, if it will be anywhere."""

    def is_finished(self, node_id: str) -> bool:
        """Whether a node has its outcome, without a failure."""

    def outcome(self, node_id: str) -> Outcome:
        """What a node resolved to; waits like `read`."""

    def switch(
        self, cursor: Cursor, bound: NodeBinding, arms: Mapping[Any, Body], default: Body | None, site: CallSite
    ) -> Any:
        """Go on by a value: run its arm, or record all of them. Raises ProgramError where no arm takes the value."""

    def loop(
        self, cursor: Cursor, body: Body, until: Handle[Any] | str | None, stop_value: Any, limit: int, site: CallSite
    ) -> Any:
        """Repeat a body until a value stops it, or record it once."""

    def map(self, cursor: Cursor, items: Any, body: Callable[[Cursor, Any], Any], site: CallSite) -> Any:
        """Record a body once for a list that only a run knows. None where the list is known: it has a branch per item."""

    def run_bodies(
        self, bodies: Sequence[Callable[[], Any]], concurrency: int | None
    ) -> list[tuple[Any, Exception | None]]:
        """Call the bodies of branches, at most so many at a time; each gives (value, None) or (None, error)."""

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """Cancel nodes and what lies below them; None: everything."""


class Line:
    """One context path that grows: the program's own, or a branch's. Owner: the cursors on it.

    tip: id of the last node. branch: index to note on the next node, where `tip` is the fork that this branch starts at.
    suffix: the branch path as it stands in node ids, "[0,2]". role: the open turn. closed: where it was joined.
    heard: how far its text was read, that text, and the half character at its end; heard_turns: likewise of its messages, with
    None in place of that half where no turn is open.
    handles: what was appended here, or before the fork. gathered: what joins on this very path gathered of a handle.
    """

    __slots__ = ("branch", "cancelled", "closed", "control", "counts", "first", "forks", "gathered", "handles", "heard",
                 "heard_turns", "path", "role", "suffix", "tip")  # fmt: skip

    def __init__(
        self,
        *,
        tip: str | None = None,
        branch: int | None = None,
        path: str = "",
        role: str | None = None,
        control: tuple[str, ...] = (),
        handles: Bindings[Handle[Any]] | None = None,
        heard: tuple[str | None, str, bytes] = (None, "", b""),
    ) -> None:
        self.tip = tip
        self.branch = branch
        self.path = path
        self.suffix = f"[{path}]" if path else ""
        self.role = role
        self.control = control
        self.handles: Bindings[Handle[Any]] = Bindings() if handles is None else handles
        self.gathered: dict[Handle[Any], NodeBinding] = {}
        self.counts: dict[str, int] = {}
        self.forks = 0
        self.first: str | None = None
        self.heard = heard
        self.heard_turns: tuple[str | None, list[dict[str, str]], bytes | None] = (None, [], None)
        self.closed: Origin | None = None
        self.cancelled = ""

    def start_branch(self, tip: str | None, index: int | None, path: str) -> Line:
        """The line of one branch: same open turn and handles as here."""
        return Line(
            tip=tip,
            branch=index,
            path=path,
            role=self.role,
            control=self.control,
            handles=self.handles.branch(),
            heard=self.heard,
        )

    def copy(self) -> Line:
        """The same, to go on apart."""
        copy = Line(
            tip=self.tip,
            branch=self.branch,
            path=self.path,
            role=self.role,
            control=self.control,
            handles=self.handles.copy(),
        )
        copy.counts, copy.forks, copy.gathered = dict(self.counts), self.forks, dict(self.gathered)
        return copy


class Cursor:
    """A place on a line, and the names of one scope. Owner: one State.

    depth: how many programs and bodies of maps are under way around it. regions: how many bodies of loops and arms of switches.
    """

    __slots__ = ("depth", "line", "names", "recorder", "regions", "scope")

    def __init__(
        self, recorder: Recorder, line: Line, names: Bindings[str], scope: str = "", depth: int = 0, regions: int = 0
    ) -> None:
        self.recorder = recorder
        self.line = line
        self.names = names
        self.scope = scope
        self.depth = depth
        self.regions = regions

    # names and values --------------------------------------------------------------------------------------------

    def find(self, key: Handle[Any] | str | Lazy[Any]) -> NodeBinding:
        """What a name or a handle stands for. Raises UnknownNameError."""
        if isinstance(key, str):
            bound = self.names.get(key)
        elif isinstance(key, Lazy):
            return key.bound
        else:
            bound = self.line.handles.get(key) if isinstance(key, Handle) else None
        if bound is None:
            raise self._unknown(key, caller_origin())
        return bound

    def _unknown(self, key: object, origin: Origin) -> DslError:
        if isinstance(key, Handle):
            hint = "append it before reading; a handle appended in branches is read with branches.join(handle)"
            return UnknownNameError(f"{key!r} has not been appended to this state", hint=hint, origin=origin)
        if not isinstance(key, str):
            return ProgramError(
                f"a state is read by name or by handle, not by {type(key).__name__}",
                hint="s['name'], or s[handle] with handle = gen(...)",
                origin=origin,
            )
        bound = sorted(self.names)
        near = get_close_matches(key, bound, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"names so far: {', '.join(bound) or 'none'}"
        return UnknownNameError(f"no append so far binds the name {key!r}", hint=hint, origin=origin)

    def rebind(self, name: str, bound: NodeBinding) -> None:
        """Make a name stand for `bound` from here on."""
        bound.earlier = self.names.get(name)
        self.names.bind(name, bound)

    def bound_since_fork(self, what: Handle[Any] | str) -> NodeBinding | None:
        """What this branch has to offer a join: what it bound, or gathered of its own branches, since the fork; or None."""
        if isinstance(what, str):
            return self.names.own.get(what)
        found = self.line.gathered.get(what) or self.line.handles.own.get(what)
        return self.names.own.get(what.name) if found is None and what.name is not None else found

    def finished(self) -> dict[str, Any]:
        """Names whose values exist, with their values. Waits for nothing."""
        return {
            name: self.recorder.read(bound)
            for name, bound in self.names.items()
            if not isinstance(bound, LocalBinding) and self.recorder.is_finished(bound.node_id)
        }

    # the path ----------------------------------------------------------------------------------------------------

    def path(self, after: str | None = None) -> list[Node]:
        """The nodes from the root to here; with `after`, those behind that node of the path."""
        return self.recorder.graph.path(self.line.tip, after)

    def text(self) -> str:
        """All text of the path, turn markers included; waits for it. What was read before is not put together again."""
        line, outcome = self.line, self.recorder.outcome
        after, known, half = (None, "", b"") if self.recorder.tracing else line.heard
        tip = line.tip
        said = PathText(known, half)
        for node in self.path(after):
            if node.kind not in SILENT:
                found = outcome(node.id)
                said.add(found.text, found.torn)
        text = said.text
        if not self.recorder.tracing:
            line.heard = (tip, text, said.half)
        return text

    def messages(self) -> list[dict[str, str]]:
        """The turns of the path; a turn that is still open comes last. Waits for their text."""
        line, outcome = self.line, self.recorder.outcome
        nothing: tuple[None, list[dict[str, str]], None] = (None, [], None)
        after, found, half = nothing if self.recorder.tracing else line.heard_turns
        tip = line.tip
        outcomes = [(node, outcome(node.id)) for node in self.path(after) if node.kind not in SILENT]
        found = [*found[:-1], *map(dict, found[-1:])]  # others may be reading this line, too
        turn = None if half is None else PathText(found[-1]["content"], half)  # the open one
        for node, said in outcomes:
            if isinstance(node, (RoleBegin, RoleEnd)):
                if turn is not None:
                    found[-1]["content"] = turn.text
                turn = None
                if isinstance(node, RoleBegin):
                    found.append({"role": node.role, "content": ""})
                    turn = PathText()
            elif turn is not None:
                turn.add(said.text, said.torn)
        if turn is not None:
            found[-1]["content"] = turn.text
        if not self.recorder.tracing:
            line.heard_turns = (tip, found, None if turn is None else turn.half)
        return [*map(dict.copy, found)]

    # other cursors -----------------------------------------------------------------------------------------------

    def branches(self, fork_id: str, n: int) -> list[Cursor]:
        """One for each branch of a fork just appended: on a line of its own, with a copy of the names."""
        line = self.line
        line.forks += 1
        round_ = "" if line.forks == 1 else f"{line.forks}:"
        above = f"{_shortened(line.path)}," if line.path else ""
        return [
            Cursor(
                self.recorder,
                line.start_branch(fork_id, index, f"{above}{round_}{index}"),
                self.names.branch(),
                self.scope,
                self.depth,
                self.regions,
            )
            for index in range(n)
        ]

    def nested(self, scope: str, depth: int) -> Cursor:
        """On the same line, for a program called here, with names of its own."""
        inner = f"{self.scope}/{scope}" if self.scope else scope
        return Cursor(self.recorder, self.line, Bindings(), inner, depth, self.regions)

    def deeper(self, what: str) -> int:
        """The depth inside `what`. Raises ProgramError where it would be more than the run allows."""
        return self._allowed(self.depth + 1, f"{what} is {self.depth + 1} calls deep in programs and maps")

    @contextmanager
    def region(self, what: str) -> Iterator[None]:
        """Inside the body of a loop or switch. Raises ProgramError where it is deeper in others than the run allows."""
        self.regions = self._allowed(self.regions + 1, f"{what} is {self.regions + 1} deep in loops and switches")
        try:
            yield
        finally:
            self.regions -= 1

    def _allowed(self, depth: int, what: str) -> int:
        if depth > self.recorder.max_depth:
            raise ProgramError(
                f"{what}, and a run allows {self.recorder.max_depth}",
                hint="end the recursion sooner, or give RunOptions(max_depth=...)",
                origin=caller_origin(),
            )
        return depth

    def cancel(self, reason: str) -> None:
        """Stop this branch, or the run where this is the program's own line."""
        line = self.line
        if line.path and line.first is not None:
            self.recorder.cancel([line.first], reason)
        elif not line.path:
            self.recorder.cancel(None, reason)
        line.cancelled = reason


def _shortened(path: str) -> str:
    """A branch path that is no longer than that of a few levels, however deep it is; the same in every run."""
    if len(path) <= MOST_PATH_CHARACTERS:
        return path
    return "h" + hashlib.blake2b(path.encode(), digest_size=8).hexdigest()
