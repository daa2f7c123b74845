"""One statement becomes nodes: ids, text pieces, roles, bindings. Nothing of it counts until it is committed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..errors import BranchError, CancelledError, Origin, ProgramError, RoleError, SpecError, TraceError
from ..ir.nodes import Gen, Node, Piece, Plain, Raw, Reference, RoleBegin, RoleEnd, Select, Text, is_role_word
from ..ir.prompts import warn_of_blanks
from ..ir.specs import SamplingSpec, shown
from .bindings import Bindings, Bound
from .call_sites import Site, caller_origin
from .expressions import Chain, Expression, Handle, Mention
from .greenlets import on_some_stack
from .recorder import Recorder, no_text
from .tracing.shapes import holds_tag

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")
MOST_PATH_CHARACTERS = 64  # of a branch path in node ids: of deeper nesting a digest stands for what lies above


class Line:
    """One context path being grown: the program's own, or a branch's. Owner: the States that append to it.

    tip: id of the last node. branch: index to note on the next node, where `tip` is the fork this branch starts at.
    suffix: the branch path as it stands in node ids, "[0,2]". role: the open turn. closed: where it was joined.
    heard: how far its text was read, that text, and the half character at its end; heard_turns: likewise of its messages, with
    None in place of that half where no turn is open.
    handles: what was appended here, or before the fork. gathered: what joins on this very path gathered of a handle.
    """

    __slots__ = (
        "branch",
        "cancelled",
        "closed",
        "control",
        "counts",
        "first",
        "forks",
        "gathered",
        "handles",
        "heard",
        "heard_turns",
        "path",
        "role",
        "suffix",
        "tip",
    )

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
        self.gathered: dict[Handle[Any], Bound] = {}
        self.counts: dict[str, int] = {}
        self.forks = 0
        self.first: str | None = None
        self.heard = heard
        self.heard_turns: tuple[str | None, list[dict[str, str]], bytes | None] = (None, [], None)
        self.closed: Origin | None = None
        self.cancelled = ""

    def start_branch(self, fork_id: str, index: int, path: str) -> Line:
        """The line of one branch: same open turn and handles as here."""
        return Line(
            tip=fork_id,
            branch=index,
            path=path,
            role=self.role,
            control=self.control,
            handles=self.handles.branch(),
            heard=self.heard,
        )


class Cursor:
    """Where a state appends: a line, and the names of one scope on it. Owner: one State.

    depth: how many programs and bodies of maps are under way around it. regions: how many bodies of loops and arms of switches.
    """

    __slots__ = ("depth", "line", "names", "recorder", "regions", "scope")

    def __init__(
        self, recorder: Recorder, line: Line, names: Bindings[str], scope: str, depth: int = 0, regions: int = 0
    ) -> None:
        self.recorder = recorder
        self.line = line
        self.names = names
        self.scope = scope
        self.depth = depth
        self.regions = regions

    def say(self, item: Any, site: Site) -> None:
        """Append one item as a statement of its own."""
        statement = self.draft(site)
        statement.add(item)
        self.commit(statement)

    def draft(self, site: Site) -> Statement:
        """Begin a statement. Raises BranchError or CancelledError where the line is over."""
        return Statement(self.recorder, self.line, self.scope, site)

    def commit(self, statement: Statement) -> None:
        """Hand the statement's nodes over. Raises what the border can see; then nothing was appended."""
        nodes = statement.finish()
        if nodes:
            self.recorder.append(nodes)
            statement.commit(self.names)
            if not self.recorder.tracing:
                for node in nodes:
                    if isinstance(node, (Gen, Select)):
                        warn_of_blanks(self.recorder.graph, node)

    def split(self, fork_id: str, n: int) -> list[Cursor]:
        """Cursors for the branches of a fork just appended: lines of their own, copies of the names."""
        line = self.line
        line.forks += 1
        round_ = "" if line.forks == 1 else f"{line.forks}:"
        above = f"{_shortened(line.path)}," if line.path else ""
        return [
            Cursor(
                self.recorder,
                line.start_branch(fork_id, i, f"{above}{round_}{i}"),
                self.names.branch(),
                self.scope,
                self.depth,
                self.regions,
            )
            for i in range(n)
        ]

    def deeper(self, what: str) -> int:
        """The depth inside `what`. Raises ProgramError where it would be more than the run allows."""
        return self._allowed(self.depth + 1, f"{what} is {self.depth + 1} calls deep in programs and maps")

    def in_region(self, what: str, body: Callable[[], T]) -> T:
        """What the body of a region gives. Raises ProgramError where it is deeper in others than the run allows."""
        self.regions = self._allowed(self.regions + 1, f"{what} is {self.regions + 1} deep in loops and switches")
        try:
            return on_some_stack(body)
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

    def rebind(self, name: str, bound: Bound) -> None:
        """Make a name stand for `bound` from here on."""
        bound.earlier = self.names.get(name)
        self.names.bind(name, bound)

    def bound_since_fork(self, what: Handle[Any] | str) -> Bound | None:
        """What this branch has to offer a join: what it bound, or gathered of its own branches, since the fork; or None."""
        if isinstance(what, str):
            return self.names.own.get(what)
        found = self.line.gathered.get(what) or self.line.handles.own.get(what)
        return self.names.own.get(what.name) if found is None and what.name is not None else found

    def path(self, after: str | None = None) -> list[Node]:
        """The nodes from the root to here; with `after`, those behind that node of the path."""
        return self.recorder.graph.path(self.line.tip, after)


def _shortened(path: str) -> str:
    """A branch path that is no longer than that of a few levels, however deep it is; the same in every run."""
    if len(path) <= MOST_PATH_CHARACTERS:
        return path
    return "h" + hashlib.blake2b(path.encode(), digest_size=8).hexdigest()


class Statement:
    """What one append adds, before it is committed.

    Ids: `scope/label.part[branch path]#occurrence`; the first node of a statement has no part, the first occurrence
    of a statement on its branch has no number.
    """

    __slots__ = ("_base", "_bindings", "_branch", "_count", "_line", "_origin", "_pieces", "_recorder", "_role",
                 "_scope", "_suffix", "_tip", "nodes")  # fmt: skip

    def __init__(self, recorder: Recorder, line: Line, scope: str, site: Site) -> None:
        if line.closed is not None or line.cancelled:
            raise _over(line, site.origin)
        label = f"{scope}/{site.label}" if scope else site.label
        count = line.counts.get(label, 0) + 1
        self._base = label
        self._count = count
        self._suffix = line.suffix if count == 1 else f"{line.suffix}#{count}"
        self._recorder = recorder
        self._line = line
        self._scope = scope
        self._origin = site.origin
        self._tip = line.tip
        self._branch = line.branch
        self._role = line.role
        self._pieces: list[Piece] = []
        self._bindings: list[tuple[Handle[Any], Bound]] = []
        self.nodes: list[Node] = []

    def add(self, item: Any) -> None:
        """Write a string, an expression, or a list or tuple of them."""
        for part in item.parts if type(item) is Chain else (item,):
            kind = type(part)
            if kind is str:
                if part:
                    self._add_text(part)
            elif isinstance(part, Expression):
                part.write(self)
            elif kind is list or kind is tuple:
                for inner in part:
                    self.add(inner)
            elif isinstance(part, str):  # an abstract value, or a user's own kind of string
                self._add_text(part)
            else:
                raise no_text(part, self._origin)

    def _add_text(self, text: str) -> None:
        if not str.isascii(text):
            check_writable(text, self._origin)
            if not self._recorder.tracing:
                check_exists(text, self._origin)
        if self._recorder.tracing:
            self._pieces.extend(self._recorder.pieces(text))
        else:
            self._pieces.append(Plain(text))

    def say(self, piece: Piece) -> None:
        """Add a piece of text."""
        if isinstance(piece, (Plain, Raw)):
            check_writable(piece.text, self._origin)
        self._pieces.append(piece)

    def push(self, kind: type[Node], **fields: Any) -> str:
        """Add a node to the context path. Returns its id."""
        return self.push_made(kind, fields)

    def push_made(self, kind: type[Node], fields: dict[str, Any]) -> str:
        """`push` of fields that are there as a dict already."""
        if self._pieces:
            self._push_text()
        node_id = self._tip = self._place(kind, self._tip, self._branch, fields)
        self._branch = None
        return node_id

    def push_aside(self, kind: type[Node], *, context: str, branch: int, **fields: Any) -> str:
        """Add a node that starts branch `branch` of the fork `context`. Returns its id."""
        return self._place(kind, context, branch, fields)

    def _place(self, kind: type[Node], context: str | None, branch: int | None, fields: dict[str, Any]) -> str:
        part = len(self.nodes)
        node_id = f"{self._base}.{part}{self._suffix}" if part else self._base + self._suffix
        node = kind(
            id=node_id,
            context=context,
            branch=branch,
            control=self._line.control,
            scope=self._scope,
            origin=self._origin,
            **fields,
        )
        self.nodes.append(node)
        return node_id

    def bind(self, handle: Handle[Any], bound: Bound) -> None:
        """Make a handle, and its name, stand for a value."""
        self._bindings.append((handle, bound))

    def sampled(self, own: SamplingSpec, given: frozenset[str]) -> SamplingSpec:
        """How a call samples: as it says itself in `given`, in all else as the run says. Raises SpecError."""
        defaults = {name: value for name, value in self._recorder.sampling.items() if name not in given}
        try:
            return replace(own, **defaults) if defaults else own
        except SpecError as error:
            raise error.at(self._origin) from None

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Make a Python callable known to the run. Returns the key that names it."""
        return self._recorder.register(key, function)

    def open_role(self, role: str) -> None:
        """Begin a turn."""
        if self._role is not None:
            raise RoleError(
                f"a turn of {role!r} begins inside an open {self._role!r} turn",
                hint="end the first turn before the next begins; turns do not nest",
                origin=self._origin,
            )
        if not is_role_word(role):
            raise RoleError(
                f"a role is one word that the model's template knows, not {shown(role)}",
                hint='role("tool", ...); what a user or a tool wrote is content, never a role',
                origin=self._origin,
            )
        self.push(RoleBegin, role=role)
        self._role = role

    def close_role(self, role: str) -> None:
        """End the turn."""
        if self._role != role:
            opened = "no turn is open" if self._role is None else f"the open turn is {self._role!r}"
            raise RoleError(
                f"a turn of {role!r} ends, but {opened}", hint=f"begin the {role!r} turn first", origin=self._origin
            )
        self.push(RoleEnd, role=role)
        self._role = None

    def choice(self, item: str | Mention) -> str | Reference:
        """A choice of a select: text, or a reference where its text is a single value that is not known yet."""
        if isinstance(item, str):
            check_writable(item, self._origin)
            pieces = self._recorder.pieces(item) or (Plain(""),)
        else:
            pieces = item.pieces
        match pieces:
            case (Plain(text),):
                return text
            case (Reference() as reference,):
                return reference
        raise ProgramError(
            f"the choice {item!r} mixes text and values that do not exist yet",
            hint="a choice is a string or one s.ref(x)",
            origin=self._origin,
        )

    def refuse_image(self, source: object) -> NoReturn:
        """No backend takes images yet."""
        raise ProgramError(
            f"image({source!r}) was appended, and no backend of this version takes images",
            hint="describe the image in text",
            origin=self._origin,
        )

    def finish(self) -> list[Node]:
        """All nodes of the statement. From here on their ids are taken, also if the recorder refuses them."""
        if self._pieces:
            self._push_text()
        if self.nodes:
            self._line.counts[self._base] = self._count
        return self.nodes

    def commit(self, names: Bindings[str]) -> None:
        """The recorder has taken the nodes: move the line on and make the bindings. `names`: of the state's scope."""
        line = self._line
        if not self.nodes:
            return
        line.tip = self._tip
        line.branch = self._branch
        line.role = self._role
        if line.first is None:
            line.first = self.nodes[0].id
        for handle, bound in self._bindings:
            bound.earlier_of_handle = line.handles.get(handle)
            line.handles.bind(handle, bound)
            for call in bound.calls_of_statement:
                if call.checked:
                    call.judged = partial(self._recorder.future, call.node_id)
            if line.gathered:
                line.gathered.pop(handle, None)
            if handle.name is not None:
                bound.earlier = names.get(handle.name)
                names.bind(handle.name, bound)

    def _push_text(self) -> None:
        self._tip = self._place(Text, self._tip, self._branch, {"pieces": tuple(self._pieces)})
        self._pieces = []
        self._branch = None


def _over(line: Line, origin: Origin) -> ProgramError | CancelledError:
    if line.cancelled:
        return CancelledError(
            f"this branch was cancelled: {line.cancelled}", hint="append before cancelling", origin=origin
        )
    return BranchError(
        f"this branch was joined already, at {line.closed}",
        hint="append before the join, or fork again; reading is still possible",
        origin=origin,
    )


def check_exists(text: str, origin: Origin) -> None:
    """Raise TraceError for text with a value in it that only ever stood for one while tracing."""
    if holds_tag(text):
        raise TraceError(
            "the text holds a value of a trace, which has no text in a run",
            hint="keep nothing of a traced body (in globals, caches, arguments) for a run",
            origin=origin,
        )


def check_writable(text: str, origin: Origin) -> None:
    """Raise ProgramError for a lone surrogate: UTF-8 cannot hold it, so no tokenizer takes it."""
    try:
        str.encode(text)
    except UnicodeEncodeError as error:
        raise ProgramError(
            f"the text holds a lone surrogate at character {error.start}, which no tokenizer takes",
            hint="text.encode('utf-8', 'replace').decode() drops such characters",
            origin=origin,
        ) from error
