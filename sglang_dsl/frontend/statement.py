"""One statement becomes nodes: what each expression adds, node ids, roles, bindings. Nothing counts until `commit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import iscoroutine
from typing import Any

from ..errors import BranchError, CancelledError, Origin, ProgramError, RoleError, SpecError, TraceError
from ..ir.analysis import warn_of_blanks
from ..ir.nodes import (
    Fork,
    Gen,
    Join,
    Node,
    Piece,
    Plain,
    Raw,
    Reference,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    is_role_word,
)
from ..ir.specs import SamplingSpec, shown
from .bindings import JoinBinding, LocalBinding, NodeBinding
from .call_sites import CallSite, caller_origin
from .cursor import Cursor, Line
from .data import TemplateText, mentions_in, read_mention, replaced, resolved_mention
from .expressions import (
    Chain,
    Deferred,
    Expression,
    Generation,
    Handle,
    Image,
    Lazy,
    LazyText,
    Mention,
    RawText,
    Selection,
    TurnBegin,
    TurnEnd,
    WholeTurn,
)
from .tracing.shapes import holds_tag


class Statement:
    """What one append adds, before it is committed.

    Ids: `scope/label.part[branch path]#occurrence`; the first node of a statement has no part, the first occurrence
    of a statement on its branch has no number.
    """

    __slots__ = ("_base", "_bindings", "_branch", "_count", "_cursor", "_line", "_origin", "_pieces", "_recorder", "_role",
                 "_suffix", "_tip", "chooses", "nodes")  # fmt: skip

    def __init__(self, cursor: Cursor, site: CallSite) -> None:
        """Begin one where the cursor stands. Raises BranchError or CancelledError where its line is over."""
        line = cursor.line
        if line.closed is not None or line.cancelled:
            raise _over(line, site.origin)
        label = f"{cursor.scope}/{site.label}" if cursor.scope else site.label
        count = line.counts.get(label, 0) + 1
        self._base = label
        self._count = count
        self._suffix = line.suffix if count == 1 else f"{line.suffix}#{count}"
        self._cursor = cursor
        self._recorder = cursor.recorder
        self._line = line
        self._origin = site.origin
        self._tip = line.tip
        self._branch = line.branch
        self._role = line.role
        self._pieces: list[Piece] = []
        self._bindings: list[tuple[Handle[Any], NodeBinding]] = []
        self.nodes: list[Node] = []
        self.chooses = False  # whether a call in it may have to choose between texts

    # what each kind of item adds ---------------------------------------------------------------------------------

    def add(self, item: Any) -> None:
        """Write a string, an expression, or a list or tuple of them."""
        for part in item.parts if type(item) is Chain else (item,):
            kind = type(part)
            if kind is str:
                if part:
                    if self._recorder.tracing or not part.isascii():
                        self._add_text(part)
                    else:
                        self._pieces.append(Plain(part))
            elif kind is Generation:
                self._add_gen(part)
            elif isinstance(part, Expression):
                self._add_expression(part)
            elif kind is list or kind is tuple:
                for inner in part:
                    self.add(inner)
            elif isinstance(part, str):  # an abstract value, or a user's own kind of string
                self._add_text(part)
            else:
                raise _no_text(part, self._origin)

    def _add_text(self, text: str) -> None:
        """Text that may hold a value of a trace, or what no tokenizer takes."""
        if not str.isascii(text):
            _check_writable(text, self._origin)
        if self._recorder.tracing:
            self._pieces.extend(self._recorder.pieces(text))
            return
        if holds_tag(text):
            raise TraceError(
                "the text holds a value of a trace, which has no text in a run",
                hint="keep nothing of a traced body (in globals, caches, arguments) for a run",
                origin=self._origin,
            )
        self._pieces.append(Plain(text))

    def _add_expression(self, item: Expression) -> None:
        match item:
            case Lazy():
                self._add_pieces(item.bound.pieces)
            case Mention(pieces=pieces):
                self._add_pieces(pieces)
            case Generation():
                self._add_gen(item)
            case Selection():
                choices = tuple(map(self._choice, item.choices))
                node_id = self.push(Select, name=item.name, choices=choices, method=item.method, model=item.model)
                self._bindings.append((item, NodeBinding(node_id, item.convert, item)))
                self.chooses = True
            case WholeTurn(role=role, content=content):
                self._open_role(role)
                for part in content:
                    self.add(part)
                self._close_role(role)
            case TurnBegin(role=role):
                self._open_role(role)
            case TurnEnd(role=role):
                self._close_role(role)
            case RawText(text=text):
                self._add_pieces((Raw(text),))
            case Deferred():
                bound = self._add_gen(item.made())
                for found in item.follows(bound):
                    if isinstance(found, tuple):
                        self._bindings.append(found)
                    else:
                        self._pieces.append(found)
            case Chain(parts=parts):
                for part in parts:
                    self.add(part)
            case Image(source=source):
                raise ProgramError(
                    f"image({source!r}) was appended, and no backend of this version takes images",
                    hint="describe the image in text",
                    origin=self._origin,
                )

    def _add_pieces(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, (Plain, Raw)):
                _check_writable(piece.text, self._origin)
            self._pieces.append(piece)

    def _add_gen(self, call: Generation[Any]) -> NodeBinding:
        """One Gen; for n samples a Fork, n Gens and a Join."""
        fields = call.fields
        if "constraint" in fields:
            self.chooses = True
        if self._recorder.sampling:
            fields = {**fields, "sampling": self._sampled(fields["sampling"], call.given)}
        if call.check is not None:
            fields = {**fields, "validator": self.register(*call.check)}
        if call.n is None:
            bound = NodeBinding(self._push(Gen, fields), call.convert, call)
        else:
            bound = self._samples(call, fields, call.n)
        if call.check is not None:
            for one in bound.parts if isinstance(bound, JoinBinding) else (bound,):
                if one is not None:
                    one.judged = partial(self._recorder.future, one.node_id)
        self._bindings.append((call, bound))
        return bound

    def _samples(self, call: Generation[Any], fields: dict[str, Any], n: int) -> JoinBinding:
        fork_id = self.push(Fork, size=n)
        samples = tuple(self._place(Gen, fork_id, index, {"sample": index, **fields}) for index in range(n))
        values = tuple(Reference(node_id) for node_id in samples)
        join_id = self.push(Join, fork=fork_id, name=call.name, tips=samples, values=values)
        return JoinBinding(join_id, [NodeBinding(node_id, call.convert) for node_id in samples], "all", label=call)

    def _sampled(self, own: SamplingSpec, given: frozenset[str]) -> SamplingSpec:
        """How a call samples: as it says itself in `given`, in all else as the run says. Raises SpecError."""
        defaults = {name: value for name, value in self._recorder.sampling.items() if name not in given}
        try:
            return replace(own, **defaults) if defaults else own
        except SpecError as error:
            raise error.at(self._origin) from None

    def _choice(self, item: str | Mention) -> str | Reference:
        """A choice of a select: text, or a reference where its text is a single value that is not known yet."""
        if isinstance(item, str):
            _check_writable(item, self._origin)
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

    def _open_role(self, role: str) -> None:
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

    def _close_role(self, role: str) -> None:
        if self._role != role:
            opened = "no turn is open" if self._role is None else f"the open turn is {self._role!r}"
            raise RoleError(
                f"a turn of {role!r} ends, but {opened}", hint=f"begin the {role!r} turn first", origin=self._origin
            )
        self.push(RoleEnd, role=role)
        self._role = None

    # nodes -------------------------------------------------------------------------------------------------------

    def push(self, kind: type[Node], **fields: Any) -> str:
        """Add a node to the context path. Returns its id."""
        return self._push(kind, fields)

    def _push(self, kind: type[Node], fields: dict[str, Any]) -> str:
        if self._pieces:
            self._end_text()
        node_id = self._tip = self._place(kind, self._tip, self._branch, fields)
        self._branch = None
        return node_id

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Make a Python callable known to the run. Returns the key that names it."""
        return self._recorder.register(key, function)

    def _place(self, kind: type[Node], context: str | None, branch: int | None, fields: dict[str, Any]) -> str:
        part = len(self.nodes)
        node_id = f"{self._base}.{part}{self._suffix}" if part else self._base + self._suffix
        node = kind(
            id=node_id,
            context=context,
            branch=branch,
            control=self._line.control,
            scope=self._cursor.scope,
            origin=self._origin,
            **fields,
        )
        self.nodes.append(node)
        return node_id

    def _end_text(self) -> None:
        self._tip = self._place(Text, self._tip, self._branch, {"pieces": tuple(self._pieces)})
        self._pieces = []
        self._branch = None


def commit(*statements: Statement) -> None:
    """Hand their nodes over, all at once; then move their lines on and make their bindings.

    Raises what can be seen at once: then nothing was appended, but the ids stay taken.
    """
    nodes: list[Node] = []
    for statement in statements:
        if statement._pieces:
            statement._end_text()
        if statement.nodes:
            statement._line.counts[statement._base] = statement._count
            nodes += statement.nodes
    if not nodes:
        return
    statements[0]._recorder.append(nodes)
    for statement in statements:
        if not statement.nodes:
            continue
        line = statement._line
        line.tip = statement._tip
        line.branch = statement._branch
        line.role = statement._role
        if line.first is None:
            line.first = statement.nodes[0].id
        for handle, bound in statement._bindings:
            bound.earlier_of_handle = line.handles.get(handle)
            line.handles.bind(handle, bound)
            if line.gathered:
                line.gathered.pop(handle, None)
            if handle.name is not None:
                statement._cursor.rebind(handle.name, bound)


def say(cursor: Cursor, item: Any, site: CallSite) -> None:
    """Append one item as a statement of its own."""
    statement = Statement(cursor, site)
    statement.add(item)
    commit(statement)
    if statement.chooses and not cursor.recorder.tracing:
        for node in statement.nodes:
            if isinstance(node, (Gen, Select)):
                warn_of_blanks(cursor.recorder.graph, node)


def push(cursor: Cursor, site: CallSite, kind: type[Node], **fields: Any) -> str:
    """Append one node as a statement of its own. Returns its id."""
    statement = Statement(cursor, site)
    node_id = statement.push(kind, **fields)
    commit(statement)
    return node_id


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


def _check_writable(text: str, origin: Origin) -> None:
    """Raise ProgramError for a lone surrogate: UTF-8 cannot hold it, so no tokenizer takes it."""
    try:
        str.encode(text)
    except UnicodeEncodeError as error:
        raise ProgramError(
            f"the text holds a lone surrogate at character {error.start}, which no tokenizer takes",
            hint="text.encode('utf-8', 'replace').decode() drops such characters",
            origin=origin,
        ) from error


def _no_text(value: object, origin: Origin) -> ProgramError:
    """The error for something that was appended and is no text."""
    kind = type(value).__name__
    if iscoroutine(value):
        value.close()
        hint = "an `async def` was called without `await`: s += await f()"
    elif value is None:
        hint = "append a string; a function that returns nothing was called here, perhaps"
    elif isinstance(value, (bool, int, float)):
        hint = f"s += str({value!r}), or an f-string with the format you want"
    elif kind == "State":
        hint = "append text or calls; a branch's text joins its parent with branches.concat()"
    elif kind == "Branches":
        hint = "append to the branches, then branches.join(x)"
    else:
        hint = "s += json.dumps(value), or an f-string"
    said = repr(value)
    return ProgramError(
        f"{said if len(said) <= 60 else said[:57] + '...'} is not text or a call"
        f"{'' if value is None else f' (its type is {kind})'}",
        hint=hint,
        origin=origin,
    )


def value_of(mention: Any, cursor: Cursor) -> Any:
    """The value of what stands for one inside data, where the cursor stands; waits for it.

    Raises:
        ProgramError: it stands for no value. UnknownNameError: a handle that was not appended.
    """
    found = resolved_mention(mention, cursor.find, caller_origin())
    if not isinstance(found, NodeBinding):
        return read_mention(found, cursor.recorder.outcome)
    value = cursor.recorder.read(found)
    return value_of(value, cursor) if isinstance(value, Lazy) else value


async def avalue_of(mention: Any, cursor: Cursor) -> Any:
    """`value_of`, without blocking the event loop."""
    found = resolved_mention(mention, cursor.find, caller_origin())
    for part in found.parts if isinstance(found, TemplateText) else (found,):
        if isinstance(part, NodeBinding) and not isinstance(part, LocalBinding):
            await cursor.recorder.aread(part)
    return value_of(mention, cursor)


_APPENDED = (Handle, Mention, Chain)  # lazy values are used like their values, so they stay what they are


def returned(value: Any, branch: Cursor) -> Any:
    """What the body of a map returns, with the values of the handles and mentions in it that its branch has appended."""
    return replaced(value, _APPENDED, lambda found: value_of(found, branch) if _is_of(found, branch) else found)


async def areturned(value: Any, branch: Cursor) -> Any:
    """`returned`, without blocking the event loop."""
    mentions = [found for found in mentions_in(value, _APPENDED, set()) if _is_of(found, branch)]
    values = {id(mention): await avalue_of(mention, branch) for mention in mentions}
    return replaced(value, _APPENDED, lambda mention: values.get(id(mention), mention))


def _is_of(mention: Any, branch: Cursor) -> bool:
    return not isinstance(mention, LazyText) and (not isinstance(mention, Handle) or mention in branch.line.handles)
