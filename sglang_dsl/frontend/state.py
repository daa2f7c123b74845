"""The state a program appends to: `s += x`, `s[x]`, `s.fork(n)`, turns, scopes, tools, control flow.

A State is what a user sees of a Cursor (`cursor.py`): a place on one context path, with the names of one scope. A nested
program gets a State on the same path with names of its own; a branch gets one on a path of its own that starts at the fork.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Sized
from types import CodeType, TracebackType
from typing import Any, NoReturn, TypeVar, overload

from ..errors import DslError, ProgramError, SpecError
from ..ir.execution import Meta
from ..ir.nodes import Constant, Node, Reference, RoleBegin, RoleEnd
from ..ir.nodes import Text as TextNode
from ..ir.nodes import ToolNode as ToolNode
from .bindings import JoinBinding, LocalBinding, NodeBinding, SpanBinding, history
from .branches import Branches, fork
from .call_sites import CallSite, caller_origin
from .cursor import SILENT, Body, Cursor
from .data import json_pieces, merged
from .expressions import Handle, Lazy, Mention, TurnBegin, TurnEnd
from .greenlets import MAP_HINT, check_plain, is_async, on_some_stack
from .statement import Statement, avalue_of, commit, say, value_of
from .tools import ObjectTool, Tool, tool_of

T = TypeVar("T")
R = TypeVar("R")


class OpenTurn:
    """The with-form of a turn. The turn is closed also where the block raises, so that the program can go on."""

    __slots__ = ("_cursor", "_role", "_site")

    def __init__(self, cursor: Cursor, role: str, site: CallSite) -> None:
        self._cursor = cursor
        self._role = role
        self._site = site

    def __enter__(self) -> None:
        say(self._cursor, TurnBegin(self._role), self._site)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = CallSite(f"{self._site.label}.end", self._site.origin)
        try:
            say(self._cursor, TurnEnd(self._role), end)
        except DslError:
            if error is None:
                raise
            # the state has failed already; the block's own error is the one to see


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
            self._cursor.rebind(self._name, _stretch(self._cursor.path(after=self._start), self._name))


def _stretch(nodes: Sequence[Node], name: str) -> SpanBinding:
    """The text of some nodes of a path as something to be bound."""
    parts: list[Constant | Reference] = []
    for node in nodes:
        if isinstance(node, TextNode):
            parts.extend(p if isinstance(p, Reference) else Constant(p.text) for p in node.pieces)
        elif node.kind not in SILENT and not isinstance(node, (RoleBegin, RoleEnd)):
            parts.append(Reference(node.id))
    return SpanBinding(parts, name)


class State:
    """What a program appends to and reads from. Made by running a program, or by `fork`."""

    __slots__ = ("_cursor", "_scopes", "index")

    def __init__(self, cursor: Cursor, index: int | None = None) -> None:
        self._cursor = cursor
        self._scopes: dict[str, int] = {}
        self.index = index  # of the branch, for a state made by fork

    # appending ---------------------------------------------------------------------------------------------------

    def __iadd__(self, item: Any) -> State:
        say(self._cursor, item, self._cursor.recorder.sites.at(sys._getframe(1)))
        return self

    def __add__(self, item: Any) -> NoReturn:
        raise ProgramError(
            "a state was added to something, which appends nothing", hint="s += ...", origin=caller_origin()
        )

    __radd__ = __add__

    def append(self, item: Any) -> State:
        """`s += item` as an expression."""
        say(self._cursor, item, self._cursor.recorder.sites.at(sys._getframe(1)))
        return self

    # reading -----------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: Handle[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: Handle[Any] | str) -> Any:
        cursor = self._cursor
        bound = cursor.names.get(key) if isinstance(key, str) else None
        return cursor.recorder.read(bound or cursor.find(key))

    @overload
    def read(self, key: Handle[T], timeout_s: float | None = None) -> T: ...
    @overload
    def read(self, key: str, timeout_s: float | None = None) -> Any: ...
    def read(self, key: Handle[Any] | str, timeout_s: float | None = None) -> Any:
        """`s[key]`, waiting at most `timeout_s`. Raises DeadlineError."""
        return self._cursor.recorder.read(self._cursor.find(key), timeout_s)

    @overload
    async def get(self, key: Handle[T]) -> T: ...
    @overload
    async def get(self, key: str) -> Any: ...
    async def get(self, key: Handle[Any] | str) -> Any:
        """`s[key]` for `async def` programs: waits without blocking the event loop."""
        return await self._cursor.recorder.aread(self._cursor.find(key))

    def __contains__(self, key: object) -> bool:
        return key in (self._cursor.names if isinstance(key, str) else self._cursor.line.handles)

    @overload
    def all(self, key: Handle[T]) -> list[T]: ...
    @overload
    def all(self, key: str) -> list[Any]: ...
    def all(self, key: Handle[Any] | str) -> list[Any]:
        """Every value the name (or handle) was bound to so far, oldest first."""
        found = history(self._cursor.find(key), of_handle=not isinstance(key, str))
        return [self._cursor.recorder.read(bound) for bound in found]

    def meta(self, key: Handle[Any] | str) -> Meta:
        """Token ids and scores, finish reason and counts of the call a name was last bound to."""
        bound = self._cursor.find(key)
        found = None if isinstance(bound, LocalBinding) else self._cursor.recorder.outcome(bound.node_id).meta
        if found is None:
            raise ProgramError(
                f"{key!r} is not one model call, so it has no meta",
                hint="ask for a gen or select; s.metas(...) has those of samples and of a join",
                origin=caller_origin(),
            )
        return found

    def metas(self, key: Handle[Any] | str) -> list[Meta]:
        """`meta` of each sample of a `gen(n=...)`, or of each call that a join gathered, in order."""
        bound = self._cursor.find(key)
        recorder = self._cursor.recorder
        calls: Iterable[NodeBinding] = [bound]
        if isinstance(bound, JoinBinding):
            settled = recorder.outcome(bound.node_id)
            calls = [
                c
                for c in bound.calls(settled.winners or ())
                if isinstance(c, LocalBinding) or recorder.is_finished(c.node_id)
            ]
        metas = [recorder.outcome(call.node_id).meta for call in calls if not isinstance(call, LocalBinding)]
        return [meta for meta in metas if meta is not None]

    def ref(self, key: Handle[Any] | str | Lazy[Any]) -> Mention:
        """Mention a value in text without waiting for it: `s += "You said " + s.ref("a")`."""
        bound = key.bound if isinstance(key, Lazy) else self._cursor.find(key)
        return Mention(bound.pieces, repr(key), bound)

    def json(self, value: Any) -> Mention:
        """A value as JSON text, quoted and escaped, to be appended: `s += '{"name": ' + s.json(s.ref("name")) + "}"`.

        Takes plain data, dataclasses and models, with mentions at any depth; does not wait for these.

        Raises:
            ProgramError: something in it has no JSON.
        """
        origin = caller_origin()
        expression = self._cursor.recorder.expression(value, self._cursor.find, origin)
        return Mention(merged(json_pieces(expression)), "json")

    def value_of(self, mention: Any) -> Any:
        """The value of what stands for one inside data: a handle, `s.ref(...)`, a join, a tool call. Waits for it.

        Raises:
            ProgramError: it stands for no value. UnknownNameError: a handle that was not appended.
        """
        return value_of(mention, self._cursor)

    async def avalue_of(self, mention: Any) -> Any:
        """`value_of`, without blocking the event loop."""
        return await avalue_of(mention, self._cursor)

    @property
    def text(self) -> str:
        """All text of this state's path, turn markers included; waits for it."""
        return self._cursor.text()

    def messages(self) -> list[dict[str, str]]:
        """The turns so far, as `{"role", "content"}`; a turn that is still open comes last. Waits for their text.

        Text outside of turns belongs to no message.
        """
        return self._cursor.messages()

    # forking -----------------------------------------------------------------------------------------------------

    def fork(self, n: int = 1) -> Branches[State]:
        """Split into `n` branches that share everything so far.

        Raises:
            ForkError: `n` is not a whole number above 0.
        """
        return self._forked(n, self._cursor.recorder.sites.at(sys._getframe(1)))

    def _forked(self, n: int, site: CallSite) -> Branches[State]:
        made = fork(self._cursor, n, site)
        return Branches(made, [State(branch, index) for index, branch in enumerate(made.branches)])

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop this branch: what has not finished ends with CancelledError, finished values stay. On the program's own
        state it stops the run.
        """
        self._cursor.cancel(reason)

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
        statement = Statement(self._cursor, site)
        given = called.arguments(args, kwargs, site.origin)
        arguments, objects = recorder.arguments(called, given, self._cursor.find, site.origin)
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
        commit(statement)
        bound = NodeBinding(node_id, called.convert, f"{called.name}(...)")
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
        cursor, taken = self._cursor, {key: self._body(arm) for key, arm in arms.items()}
        otherwise = None if default is None else self._body(default)
        with cursor.region("a switch"):
            bound = cursor.find(on)
            found: R = on_some_stack(lambda: cursor.recorder.switch(cursor, bound, taken, otherwise, site))
        return found

    def loop(
        self, body: Callable[[State], R], *, until: Handle[Any] | str | None = None, stop_value: Any = True, limit: int
    ) -> R:
        """Call `body` with this state at most `limit` times, until the value that it binds to `until` equals
        `stop_value`. Gives what the last call returned. In a trace it is recorded once, as a loop.
        """
        site = self._cursor.recorder.sites.at(sys._getframe(1))
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise SpecError(f"limit={limit!r} is not a whole number above 0", hint="limit=5", origin=site.origin)
        check_plain(body, "the body of the loop", site.origin)
        cursor, repeated = self._cursor, self._body(body)
        with cursor.region("a loop"):
            found: R = on_some_stack(lambda: cursor.recorder.loop(cursor, repeated, until, stop_value, limit, site))
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
        recorded = self._cursor.recorder.map(self._cursor, items, lambda at, item: body(self._at(at), item), site)
        asynchronous = is_async(body)
        if recorded is not None or not len(items):
            found = [] if recorded is None else recorded
            return _awaitable(found) if asynchronous else found
        branches = self._forked(len(items), site)
        if not asynchronous:
            return branches.map(lambda branch: body(branch, items[branch.index or 0]))

        async def one(branch: State) -> Any:
            return await body(branch, items[branch.index or 0])

        return branches.map(one)

    def _body(self, body: Callable[[State], Any]) -> Body:
        return lambda at: body(self._at(at))

    def _at(self, cursor: Cursor) -> State:
        """This state, or one like it where a trace follows a body on a path of its own."""
        return self if cursor is self._cursor else State(cursor, self.index)

    def __repr__(self) -> str:
        where = f" branch {self._cursor.line.path}" if self._cursor.line.path else ""
        return f"<State{where} at {self._cursor.line.tip}>"


def cursor_of(state: State) -> Cursor:
    """Where a state appends, for the rest of the frontend."""
    return state._cursor


def nested(state: State, program: str, body: CodeType) -> State:
    """A state on the same line for a program called inside this one, with names of its own."""
    cursor, scopes = state._cursor, state._scopes
    depth = cursor.deeper(program)
    cursor.recorder.sites.know_body(body)
    count = scopes[program] = scopes.get(program, 0) + 1
    return State(cursor.nested(program if count == 1 else f"{program}#{count}", depth), state.index)


async def _awaitable(value: Any) -> Any:
    """A value that is there already, to be awaited like the results of `async def` bodies."""
    return value
