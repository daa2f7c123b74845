"""The state a program appends to: `s += x`, `s[x]`, `s.fork(n)`, turns, scopes, control flow.

A State is a view: a Line (one context path) with the names of one scope. A nested program gets a State over the same
Line with names of its own; a branch gets a Line of its own that starts at the fork, and a copy of the names.

What is different between a run and a trace is behind the Recorder (`recorder.py`): State only drafts statements
(`statement.py`), hands their nodes to `recorder.append`, and asks `recorder.read` for values. A tracer is a Recorder
whose `read` returns abstract values, whose `pieces` finds them in strings, and whose `expression` finds them in data.

What a context path reads as: its text, its messages, and how a stretch of it is mentioned elsewhere.

The with-forms: a turn, and text that gets a name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Sized
from difflib import get_close_matches
from types import CodeType, TracebackType
from typing import Any, NoReturn, TypeVar, overload

from ..errors import DslError, ForkError, Origin, ProgramError, UnknownNameError
from ..ir.execution import Meta, Outcome
from ..ir.nodes import Constant, Fork, Node, Reference, RoleBegin, RoleEnd
from ..ir.nodes import Text as TextNode
from ..ir.nodes import Tool as ToolNode
from ..ir.outcome import PathText
from ..ir.specs import MOST_BRANCHES, shown
from .bindings import Bindings, Bound, Gathered, Local, Span, history
from .branches import Branches
from .call_sites import Site, caller_origin
from .data import Text, json_pieces, merged, read_mention, resolved_mention
from .expressions import Handle, Mention, TurnBegin, TurnEnd
from .lazy_values import Lazy
from .recorder import MAP_HINT, check_limit, check_plain
from .statement import Cursor, Statement
from .tools import ObjectTool, Tool, tool_of

SILENT = frozenset({"fork", "return", "input", "tool"})  # node kinds that add no text


def text_of(cursor: Cursor) -> str:
    """All text of the path, turn markers included; waits for it. What was read before is not put together again."""
    line, outcome = cursor.line, cursor.recorder.outcome
    after, known, half = (None, "", b"") if cursor.recorder.tracing else line.heard
    tip = line.tip
    said = PathText(known, half)
    for node in cursor.path(after):
        if node.kind not in SILENT:
            found = outcome(node.id)
            said.add(found.text, found.torn)
    text = said.text
    if not cursor.recorder.tracing:
        line.heard = (tip, text, said.half)
    return text


def messages_of(cursor: Cursor) -> list[dict[str, str]]:
    """The turns of the path; a turn that is still open comes last."""
    line, outcome = cursor.line, cursor.recorder.outcome
    nothing: tuple[None, list[dict[str, str]], None] = (None, [], None)
    after, found, half = nothing if cursor.recorder.tracing else line.heard_turns
    tip = line.tip
    outcomes = [(node, outcome(node.id)) for node in cursor.path(after) if node.kind not in SILENT]
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
    if not cursor.recorder.tracing:
        line.heard_turns = (tip, found, None if turn is None else turn.half)
    return [*map(dict.copy, found)]


def stretch(nodes: Sequence[Node], name: str) -> Span:
    """The text of some nodes of a path as something to be bound."""
    parts: list[Constant | Reference] = []
    for node in nodes:
        if isinstance(node, TextNode):
            parts.extend(p if isinstance(p, Reference) else Constant(p.text) for p in node.pieces)
        elif node.kind not in SILENT and not isinstance(node, (RoleBegin, RoleEnd)):
            parts.append(Reference(node.id))
    return Span(parts, name)


class OpenTurn:
    """The with-form of a turn. The turn is closed also where the block raises, so that the program can go on."""

    __slots__ = ("_cursor", "_role", "_site")

    def __init__(self, cursor: Cursor, role: str, site: Site) -> None:
        self._cursor = cursor
        self._role = role
        self._site = site

    def __enter__(self) -> None:
        self._cursor.say(TurnBegin(self._role), self._site)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = Site(f"{self._site.label}.end", self._site.origin)
        if error is None:
            self._cursor.say(TurnEnd(self._role), end)
            return
        try:
            self._cursor.say(TurnEnd(self._role), end)
        except DslError:
            return  # the state has failed already; the block's own error is the one to see


class NamedSpan:
    """The with-form that names the text appended inside."""

    __slots__ = ("_cursor", "_name", "_start")

    def __init__(self, cursor: Cursor, name: str) -> None:
        self._cursor = cursor
        self._name = name
        self._start: str | None = None

    def __enter__(self) -> None:
        self._start = self._cursor.line.tip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._cursor.rebind(self._name, stretch(self._cursor.path(after=self._start), self._name))


T = TypeVar("T")
R = TypeVar("R")


class State:
    """What a program appends to and reads from. Made by running a program, or by `fork`."""

    __slots__ = ("_cursor", "_scopes", "index")

    def __init__(self, cursor: Cursor, index: int | None = None) -> None:
        self._cursor = cursor
        self._scopes: dict[str, int] = {}
        self.index = index  # of the branch, for a state made by fork

    # appending ---------------------------------------------------------------------------------------------------

    def __iadd__(self, item: Any) -> State:
        cursor = self._cursor
        statement = Statement(cursor.recorder, cursor.line, cursor.scope, cursor.recorder.sites.at(sys._getframe(1)))
        statement.add(item)
        cursor.commit(statement)
        return self

    def __add__(self, item: Any) -> NoReturn:
        raise ProgramError(
            "a state was added to something, which appends nothing", hint="s += ...", origin=caller_origin()
        )

    __radd__ = __add__

    def append(self, item: Any) -> State:
        """`s += item` as an expression."""
        cursor = self._cursor
        cursor.say(item, cursor.recorder.sites.at(sys._getframe(1)))
        return self

    # reading -----------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: Handle[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: Handle[Any] | str) -> Any:
        return self._value(self._find(key))

    @overload
    def read(self, key: Handle[T], timeout_s: float | None = None) -> T: ...
    @overload
    def read(self, key: str, timeout_s: float | None = None) -> Any: ...
    def read(self, key: Handle[Any] | str, timeout_s: float | None = None) -> Any:
        """`s[key]`, waiting at most `timeout_s`. Raises DeadlineError."""
        return self._value(self._find(key), timeout_s)

    @overload
    async def get(self, key: Handle[T]) -> T: ...
    @overload
    async def get(self, key: str) -> Any: ...
    async def get(self, key: Handle[Any] | str) -> Any:
        """`s[key]` for `async def` programs: waits without blocking the event loop."""
        bound = self._find(key)
        return self._value(bound) if isinstance(bound, Local) else await self._cursor.recorder.aread(bound)

    def __contains__(self, key: object) -> bool:
        return key in (self._cursor.names if isinstance(key, str) else self._cursor.line.handles)

    @overload
    def all(self, key: Handle[T]) -> list[T]: ...
    @overload
    def all(self, key: str) -> list[Any]: ...
    def all(self, key: Handle[Any] | str) -> list[Any]:
        """Every value the name (or handle) was bound to so far, oldest first."""
        return [self._value(bound) for bound in history(self._find(key), of_handle=not isinstance(key, str))]

    def meta(self, key: Handle[Any] | str) -> Meta:
        """Token ids and scores, finish reason and counts of the call a name was last bound to."""
        bound = self._find(key)
        found = None if isinstance(bound, Local) else self._cursor.recorder.outcome(bound.node_id).meta
        if found is None:
            raise ProgramError(
                f"{key!r} is not one model call, so it has no meta",
                hint="ask for a gen or select; s.metas(...) has those of samples and of a join",
                origin=caller_origin(),
            )
        return found

    def metas(self, key: Handle[Any] | str) -> list[Meta]:
        """`meta` of each sample of a `gen(n=...)`, or of each call that a join gathered, in order."""
        bound = self._find(key)
        recorder = self._cursor.recorder
        calls: Iterable[Bound] = [bound]
        if isinstance(bound, Gathered):
            settled = recorder.outcome(bound.node_id)
            calls = [
                c for c in bound.calls(settled.winners or ()) if isinstance(c, Local) or recorder.is_finished(c.node_id)
            ]
        metas = [recorder.outcome(call.node_id).meta for call in calls if not isinstance(call, Local)]
        return [meta for meta in metas if meta is not None]

    def ref(self, key: Handle[Any] | str | Lazy[Any]) -> Mention:
        """Mention a value in text without waiting for it: `s += "You said " + s.ref("a")`."""
        bound = key.bound if isinstance(key, Lazy) else self._find(key)
        return Mention(bound.pieces, repr(key), bound)

    def json(self, value: Any) -> Mention:
        """A value as JSON text, quoted and escaped, to be appended: `s += '{"name": ' + s.json(s.ref("name")) + "}"`.

        Takes plain data, dataclasses and models, with mentions at any depth; does not wait for these.

        Raises:
            ProgramError: something in it has no JSON.
        """
        origin = caller_origin()
        expression = self._cursor.recorder.expression(value, self._find, origin)
        return Mention(merged(json_pieces(expression)), "json")

    def value_of(self, mention: Any) -> Any:
        """The value of what stands for one inside data: a handle, `s.ref(...)`, a join, a tool call. Waits for it.

        Raises:
            ProgramError: it stands for no value. UnknownNameError: a handle that was not appended.
        """
        found = resolved_mention(mention, self._find, caller_origin())
        if isinstance(found, Bound):
            value = self._value(found)
            return self.value_of(value) if isinstance(value, Lazy) else value
        return read_mention(found, self._cursor.recorder.outcome)

    async def avalue_of(self, mention: Any) -> Any:
        """`value_of`, without blocking the event loop."""
        found = resolved_mention(mention, self._find, caller_origin())
        for part in found.parts if isinstance(found, Text) else (found,):
            if isinstance(part, Bound) and not isinstance(part, Local):
                await self._cursor.recorder.aread(part)
        return self.value_of(mention)

    def _value(self, bound: Bound, timeout_s: float | None = None) -> Any:
        recorder = self._cursor.recorder
        if isinstance(bound, Local):
            return bound.resolve(recorder.outcome)
        return recorder.read(bound, timeout_s)

    def _finished(self) -> dict[str, Any]:
        """Names whose values exist, with their values. Waits for nothing."""
        recorder = self._cursor.recorder
        found: dict[str, Any] = {}
        for name, bound in self._cursor.names.items():
            if not isinstance(bound, Local) and recorder.is_finished(bound.node_id):
                found[name] = recorder.read(bound)
        return found

    def _outcomes(self) -> dict[str, Outcome]:
        recorder = self._cursor.recorder
        return {n.id: recorder.outcome(n.id) for n in recorder.graph if recorder.is_finished(n.id)}

    def _find(self, key: Handle[Any] | str | Lazy[Any]) -> Bound:
        if isinstance(key, str):
            bound = self._cursor.names.get(key)
        elif isinstance(key, Lazy):
            return key.bound
        else:
            bound = self._cursor.line.handles.get(key) if isinstance(key, Handle) else None
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
        bound = sorted(self._cursor.names)
        near = get_close_matches(key, bound, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"names so far: {', '.join(bound) or 'none'}"
        return UnknownNameError(f"no append so far binds the name {key!r}", hint=hint, origin=origin)

    @property
    def text(self) -> str:
        """All text of this state's path, turn markers included; waits for it."""
        return text_of(self._cursor)

    def messages(self) -> list[dict[str, str]]:
        """The turns so far, as `{"role", "content"}`; a turn that is still open comes last. Waits for their text.

        Text outside of turns belongs to no message.
        """
        return messages_of(self._cursor)

    # forking -----------------------------------------------------------------------------------------------------

    def fork(self, n: int = 1) -> Branches[State]:
        """Split into `n` branches that share everything so far.

        Raises:
            ForkError: `n` is not a whole number above 0.
        """
        site = self._cursor.recorder.sites.at(sys._getframe(1))
        return self._fork(n, site)

    def _fork(self, n: int, site: Site) -> Branches[State]:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            what = (
                f"fork({shown(n)}): a fork has at least one branch"
                if isinstance(n, int)
                else f"fork({shown(n)}) is not a whole number"
            )
            raise ForkError(
                what, hint="s.fork(3); skip the fork where there is nothing to branch into", origin=site.origin
            )
        if n > MOST_BRANCHES:
            raise ForkError(
                f"fork({shown(n)}): a fork has at most {MOST_BRANCHES:,} branches",
                hint="fork several times",
                origin=site.origin,
            )
        statement = self._cursor.draft(site)
        fork_id = statement.push(Fork, size=n)
        self._cursor.commit(statement)
        return Branches(self, fork_id, [State(c, i) for i, c in enumerate(self._cursor.split(fork_id, n))])

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop this branch: what has not finished ends with CancelledError, finished values stay. On the program's own
        state it stops the run.
        """
        line = self._cursor.line
        if line.path and line.first is not None:
            self._cursor.recorder.cancel([line.first], reason)
        elif not line.path:
            self._cursor.recorder.cancel(None, reason)
        line.cancelled = reason

    # turns and scopes --------------------------------------------------------------------------------------------

    def system(self) -> OpenTurn:
        """`with s.system(): ...`"""
        return OpenTurn(self._cursor, "system", self._cursor.recorder.sites.at(sys._getframe(1)))

    def user(self) -> OpenTurn:
        """`with s.user(): ...`"""
        return OpenTurn(self._cursor, "user", self._cursor.recorder.sites.at(sys._getframe(1)))

    def assistant(self) -> OpenTurn:
        """`with s.assistant(): ...`"""
        return OpenTurn(self._cursor, "assistant", self._cursor.recorder.sites.at(sys._getframe(1)))

    def role(self, name: str) -> OpenTurn:
        """`with s.role("tool"): ...`, for any role that the model's template knows."""
        return OpenTurn(self._cursor, name, self._cursor.recorder.sites.at(sys._getframe(1)))

    def var_scope(self, name: str) -> NamedSpan:
        """`with s.var_scope("story"): ...`; afterwards `s["story"]` is the text appended inside."""
        return NamedSpan(self._cursor, name)

    def _nested(self, program: str, body: CodeType) -> State:
        """A state over the same line for a program called inside this one, with names of its own."""
        depth = self._cursor.deeper(program)
        self._cursor.recorder.sites.know_body(body)
        count = self._scopes[program] = self._scopes.get(program, 0) + 1
        name = program if count == 1 else f"{program}#{count}"
        scope = f"{self._cursor.scope}/{name}" if self._cursor.scope else name
        cursor = Cursor(self._cursor.recorder, self._cursor.line, Bindings(), scope, depth, self._cursor.regions)
        return State(cursor, self.index)

    # tools and choices -------------------------------------------------------------------------------------------

    def call(self, tool: Tool[..., T], *args: Any, **kwargs: Any) -> Lazy[T]:
        """Call a tool once its arguments are there. Does not wait; appends no text. The value can be read as
        `s[tool name]` too, awaited, mentioned (`s += hits`), or used like what the tool returns.
        """
        site = self._cursor.recorder.sites.at(sys._getframe(1))
        called = tool_of(tool)
        if called is None:
            raise ProgramError(f"{tool!r} is not a tool", hint="put @tool on the function", origin=site.origin)
        recorder = self._cursor.recorder
        statement = self._cursor.draft(site)
        given = called.arguments(args, kwargs, site.origin)
        arguments, objects = recorder.arguments(called, given, self._find, site.origin)
        node_id = statement.push(
            ToolNode,
            name=called.name,
            tool=statement.register(called.key, ObjectTool(called)),
            arguments=arguments,
            timeout_s=called.timeout_s,
            pure=called.pure,
            idempotent=called.idempotent,
            objects=objects,
        )
        self._cursor.commit(statement)
        bound = Bound(node_id, called.convert, f"{called.name}(...)")
        self._cursor.rebind(called.name, bound)
        return Lazy(recorder, bound)

    def switch(
        self,
        on: Handle[Any] | str,
        arms: Mapping[Any, Callable[[State], R]],
        default: Callable[[State], R] | None = None,
    ) -> R:
        """Go on by the value of `on`: the arm whose key equals it is called with this state. Gives what it returns.

        In a run it is an `if` on the value (and waits for it); in a trace all arms are recorded, so that the graph is
        the whole program. Read what an arm binds through what it returns.
        """
        site = self._cursor.recorder.sites.at(sys._getframe(1))
        for arm in (*arms.values(), default):
            check_plain(arm, "an arm of the switch", site.origin)
        run = self._cursor.recorder.switch
        found: R = self._cursor.in_region("a switch", lambda: run(self, self._find(on), arms, default, site))
        return found

    def loop(
        self, body: Callable[[State], R], *, until: Handle[Any] | str | None = None, stop_value: Any = True, limit: int
    ) -> R:
        """Call `body` with this state at most `limit` times, until the value that it binds to `until` equals
        `stop_value`. Gives what the last call returned. In a trace it is recorded once, as a loop.
        """
        site = self._cursor.recorder.sites.at(sys._getframe(1))
        check_limit(limit, site)
        check_plain(body, "the body of the loop", site.origin)
        run = self._cursor.recorder.loop
        found: R = self._cursor.in_region("a loop", lambda: run(self, body, until, stop_value, limit, site))
        return found

    @overload
    def map(  # type: ignore[overload-overlap]  # a coroutine function is the narrower case
        self, items: Sequence[T], body: Callable[[State, T], Coroutine[Any, Any, R]]
    ) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def map(self, items: Sequence[T], body: Callable[[State, T], R]) -> list[R]: ...
    def map(self, items: Sequence[Any], body: Callable[[State, Any], Any]) -> Any:
        """Call `body(branch, item)` for each item, each in a branch of its own, concurrently; gives what they return,
        in order. No items give no branches. In a trace, items that are not known yet are recorded as a map.

        In an `async def` program the body may be `async def`, too: then this gives an awaitable.
        """
        site = self._cursor.recorder.sites.at(sys._getframe(1))
        if not self._cursor.recorder.asynchronous:
            check_plain(body, "the body of the map", site.origin, hint=MAP_HINT)
        if not isinstance(items, Sized) or not hasattr(items, "__getitem__"):
            raise ProgramError(
                f"a {type(items).__name__} is no list of items to map over",
                hint="s.map(list(items), body)",
                origin=site.origin,
            )
        return self._cursor.recorder.map(self, items, body, site)

    def __repr__(self) -> str:
        where = f" branch {self._cursor.line.path}" if self._cursor.line.path else ""
        return f"<State{where} at {self._cursor.line.tip}>"
