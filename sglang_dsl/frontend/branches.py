"""The branches of a fork: appending to all, running a body in each, and their joins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from typing import Any, Generic, Literal, TypeVar, get_args, overload

from ..errors import (
    BranchError,
    DslError,
    ForkError,
    JoinError,
    Origin,
    ProgramError,
    RoleError,
    SpecError,
    UnknownNameError,
)
from ..ir.nodes import Fork, Join
from ..ir.specs import MOST_BRANCHES, JoinMode, shown
from .bindings import LIST_MODES, JoinBinding, NodeBinding
from .call_sites import CallSite, caller_origin
from .cursor import Cursor
from .expressions import Handle, Joined, Lazy
from .greenlets import MAP_HINT, check_plain, is_async, no_coroutine
from .outputs import check_takes_value
from .statement import Statement, areturned, commit, push, returned

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")  # a state


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """How branches are to be joined. `Branches.join` says what each option means."""

    mode: JoinMode = "all"
    k: int | None = None
    key: Callable[[Any], Any] | None = None
    nested: bool = False
    accept: Iterable[int] | None = None
    cancel_rest: bool = True

    def check(self, size: int, site: CallSite) -> None:
        """Raise SpecError where the mode is unknown, or the options do not fit it or the number of branches that take part."""
        if self.mode not in get_args(JoinMode):
            raise SpecError(
                f"mode={self.mode!r} is unknown", hint=f"one of {', '.join(get_args(JoinMode))}", origin=site.origin
            )
        needs_k = self.mode in ("first", "quorum")
        if needs_k and (isinstance(self.k, bool) or not isinstance(self.k, int) or not 1 <= self.k <= size):
            hint = f"give k between 1 and {size}" if size else "no branch takes part: all were cancelled"
            raise SpecError(f"mode {self.mode!r} of {size} branches with k={self.k!r}", hint=hint, origin=site.origin)
        if not needs_k and self.k is not None:
            raise SpecError(f"mode {self.mode!r} takes no k", hint="use mode='first' or 'quorum'", origin=site.origin)
        if self.key is not None:
            try:
                check_takes_value("key", self.key, "branches.best(x, key=function of the value)")
            except SpecError as error:
                raise error.at(site.origin) from None
        if (self.mode == "best") != (self.key is not None):
            what = "mode 'best' needs a key" if self.mode == "best" else f"mode {self.mode!r} takes no key"
            raise SpecError(what, hint="branches.best(x, key=function)", origin=site.origin)

    def skipped(self, branches: Sequence[Cursor], site: CallSite) -> tuple[int, ...]:
        """The branches that take no part: those that were cancelled, or all that `accept` does not name."""
        if self.accept is None:
            return tuple(index for index, branch in enumerate(branches) if branch.line.cancelled)
        if isinstance(self.accept, (str, bytes)) or not isinstance(self.accept, Iterable):
            raise _no_branches(self.accept, len(branches), site)
        accepted: list[int] = []
        for index in self.accept:
            accepted.append(index)
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(branches):
                raise _no_branches(accepted, len(branches), site)
        return tuple(sorted(set(range(len(branches))) - set(accepted)))


def _no_branches(accept: object, size: int, site: CallSite) -> SpecError:
    return SpecError(
        f"accept={accept!r} does not name branches of {size}",
        hint=f"a list of numbers from 0 to {size - 1}",
        origin=site.origin,
    )


def fork(cursor: Cursor, n: int, site: CallSite) -> Forked:
    """Append a fork into `n` branches. Raises ForkError where `n` is not a whole number above 0."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        what = f"fork({shown(n)})" + (
            ": a fork has at least one branch" if isinstance(n, int) else " is not a whole number"
        )
        hint = "s.fork(3); skip the fork where there is nothing to branch into"
        raise ForkError(what, hint=hint, origin=site.origin)
    if n > MOST_BRANCHES:
        what = f"fork({shown(n)}): a fork has at most {MOST_BRANCHES:,} branches"
        raise ForkError(what, hint="fork several times", origin=site.origin)
    fork_id = push(cursor, site, Fork, size=n)
    return Forked(cursor, fork_id, cursor.branches(fork_id, n))


@dataclass(frozen=True, slots=True)
class Forked:
    """One fork, to the rest of the frontend: where it was made, and where its branches append."""

    parent: Cursor
    fork_id: str
    branches: list[Cursor]

    def say(self, item: Any, site: CallSite) -> None:
        """Append to each branch; `item` may be a function of the index. The runtime sees all siblings at once."""
        statements = []
        for index, branch in enumerate(self.branches):
            statement = Statement(branch, site)
            statement.add(item(index) if callable(item) and not isinstance(item, type) else item)
            statements.append(statement)
        commit(*statements)

    def join(
        self, what: Handle[Any] | str | None, request: JoinRequest, site: CallSite, *, only_new: bool = False
    ) -> Any:
        """What is gathered, to be waited for. `only_new`: of all names, those that the parent does not have yet."""
        if self.parent.line.closed is not None:
            raise BranchError(
                f"the state that made this fork was itself joined already, at {self.parent.line.closed}",
                hint="join inner branches before outer ones",
                origin=site.origin,
            )
        skipped = request.skipped(self.branches, site)
        request.check(len(self.branches) - len(skipped), site)
        if request.mode == "concat":
            self._check_turns(skipped, site)
            self._push(None, [None] * len(self.branches), request, skipped, site)
            return None
        if what is not None:
            return self._gather(what, request, skipped, site)
        names = list(dict.fromkeys(name for branch in self.branches for name in branch.names.own))
        if only_new:
            names = [name for name in names if name not in self.parent.names]
        if not names:
            self._push(None, [None] * len(self.branches), request, skipped, site)
            return None
        gathered = {name: self._gather(name, request, skipped, site) for name in names}
        return gathered if len(gathered) > 1 else gathered[names[0]]

    def _gather(self, what: object, request: JoinRequest, skipped: tuple[int, ...], site: CallSite) -> Lazy[Any]:
        """Join the branches' values of one name or handle in the parent."""
        if not isinstance(what, (str, Handle)):
            hint = "branches.join('name'), or branches.join(handle) with handle = gen(...)"
            raise ProgramError(
                f"branches are joined on a name or a handle, not on {shown(what)}", hint=hint, origin=site.origin
            )
        bound = [branch.bound_since_fork(what) for branch in self.branches]
        if not any(part is not None for part in bound):
            raise UnknownNameError(
                f"no branch has bound {what!r} since the fork",
                hint="append the handle to a branch before the join",
                origin=site.origin,
            )
        parts = [None if index in skipped else part for index, part in enumerate(bound)]
        name = what if isinstance(what, str) else what.name
        gathered = self._push(name, parts, request, skipped, site)
        if name is not None:
            self.parent.rebind(name, gathered)
        if isinstance(what, Handle):
            self.parent.line.gathered[what] = gathered
        kind: type[Lazy[Any]] = Joined if request.mode in LIST_MODES else Lazy  # type: ignore[assignment]
        return kind(self.parent.recorder, gathered)

    def _push(
        self,
        name: str | None,
        parts: Sequence[NodeBinding | None],
        request: JoinRequest,
        skipped: tuple[int, ...],
        site: CallSite,
    ) -> JoinBinding:
        """Append the Join. Closes the branches to appends."""
        statement = Statement(self.parent, site)
        key = None
        if request.key is not None:
            bound = [part for part in parts if part is not None]
            key = statement.register(_key_of(request.key), _on_typed(request.key, bound))
        label = f"join of {name!r}" if name else "join"
        gathered = JoinBinding("", parts, request.mode, label=label, nested=request.nested, skipped=skipped)
        gathered.node_id = statement.push(
            Join,
            fork=self.fork_id,
            name=name,
            mode=request.mode,
            tips=tuple(branch.line.tip for branch in self.branches),
            values=tuple(map(gathered.taken_of, parts)),
            k=request.k,
            key=key,
            skipped=skipped,
            cancel_rest=request.cancel_rest,
        )
        commit(statement)
        for branch in self.branches:
            branch.line.closed = site.origin
        return gathered

    def _check_turns(self, skipped: Sequence[int], site: CallSite) -> None:
        """Raise RoleError where text would be appended that begins or ends a turn of its own."""
        for index, branch in enumerate(self.branches):
            if branch.line.role != self.parent.line.role and index not in skipped:
                opened, wanted = branch.line.role or "no", self.parent.line.role or "no"
                raise RoleError(
                    f"branch {index} ends with {opened} turn open, its parent has {wanted} turn open",
                    hint="close in the branch what it opened, then join its text",
                    origin=site.origin,
                )


def _key_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _on_typed(key: Callable[[Any], Any], parts: Sequence[NodeBinding]) -> Callable[[Any], Any]:
    """The key, called with the value as the user would read it."""
    if not parts or (parts[0].convert is None and not isinstance(parts[0], JoinBinding)):
        return key
    return lambda value: key(next((part for part in parts if part.has_made(value)), parts[0]).typed(value))


class Branches(Generic[S]):
    """States made by one fork, in order. `branches += x` appends to each; `x` may be a function of the index."""

    __slots__ = ("_fork", "_states")

    def __init__(self, fork: Forked, states: list[S]) -> None:
        self._fork = fork
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (str, Handle)):
            hint = f"branches.join({index!r}), or branches[0][{index!r}]"
            raise BranchError(f"branches are counted, not named {index!r}", hint=hint, origin=caller_origin())
        return self._states[index]

    def __setitem__(self, index: int, state: S) -> None:
        """What `branches[i] += x` ends with. Raises BranchError for any other state."""
        if state is not self._states[index]:
            raise BranchError(f"branch {index} cannot be replaced", hint="branches[i] += x", origin=caller_origin())

    def __iadd__(self, item: Any) -> Branches[S]:
        self._fork.say(item, self._site(sys._getframe(1)))
        return self

    def append(self, item: Any) -> Branches[S]:
        """`branches += item` as an expression."""
        self._fork.say(item, self._site(sys._getframe(1)))
        return self

    def _site(self, frame: Any) -> CallSite:
        return self._fork.parent.recorder.sites.at(frame)

    # running branch bodies ---------------------------------------------------------------------------------------

    @overload
    def map(  # type: ignore[overload-overlap]  # a coroutine function is the narrower case
        self, body: Callable[[S], Coroutine[Any, Any, R]], *, concurrency: int | None = None
    ) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def map(self, body: Callable[[S], R], *, concurrency: int | None = None) -> list[R]: ...
    def map(self, body: Callable[[S], Any], *, concurrency: int | None = None) -> Any:
        """Call `body(branch)` for every branch, concurrently on this thread: where one waits for a value, others go on.

        An `async def` body gives an awaitable and runs as tasks. `concurrency` bounds how many bodies are begun and
        unfinished at a time. Returns the bodies' results in branch order.

        Raises:
            JoinError: a body raised; it holds every result, the first error is its cause.
        """
        origin = caller_origin()
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            what = f"concurrency={shown(concurrency)} is not a whole number above 0"
            raise ForkError(what, hint="leave it out for no bound", origin=origin)
        parent, branches = self._fork.parent, self._fork.branches
        asynchronous = is_async(body)
        if asynchronous and not parent.recorder.asynchronous:
            check_plain(body, "the body of the map", origin, hint=MAP_HINT)
        depth = parent.deeper(f"map of {getattr(body, '__name__', 'a body')}")
        for branch in branches:
            branch.depth = depth
        if asynchronous:
            return self._map_async(body, concurrency, origin)

        def one(state: S, branch: Cursor) -> Any:
            return returned(body(state), branch)

        bodies = [partial(one, state, branch) for state, branch in zip(self._states, branches, strict=True)]
        ended = parent.recorder.run_bodies(bodies, concurrency)
        coroutines = [value for value, _ in ended if iscoroutine(value)]
        for coroutine in coroutines:
            coroutine.close()
        if coroutines:
            no_coroutine(coroutines[0], "the body of the map", origin, hint=MAP_HINT)
        return _all_or_first_error(ended, origin)

    async def _map_async(
        self, body: Callable[[S], Coroutine[Any, Any, R]], concurrency: int | None, origin: Origin
    ) -> list[R]:
        import asyncio

        gate = asyncio.Semaphore(concurrency or len(self._states))

        async def one(state: S, branch: Cursor) -> tuple[R | None, Exception | None]:
            async with gate:
                try:
                    return await areturned(await body(state), branch), None
                except Exception as error:  # noqa: BLE001  a body's error is its result; the map raises it
                    return None, error

        bodies = [one(state, branch) for state, branch in zip(self._states, self._fork.branches, strict=True)]
        if self._fork.parent.recorder.tracing:
            ended = [await asyncio.create_task(body) for body in bodies]
        else:
            ended = await asyncio.gather(*bodies)
        return _all_or_first_error(ended, origin)

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Cancel every branch."""
        for branch in self._fork.branches:
            branch.cancel(reason)

    # joins -------------------------------------------------------------------------------------------------------

    @overload
    def join(
        self, what: Handle[T], *, mode: Literal["all"] = "all", nested: bool = False,
        accept: Iterable[int] | None = None,
    ) -> Joined[T]: ...  # fmt: skip
    @overload
    def join(
        self, what: str, *, mode: Literal["all"] = "all", nested: bool = False, accept: Iterable[int] | None = None
    ) -> Joined[Any]: ...
    @overload
    def join(
        self, what: Handle[Any] | str, *, mode: JoinMode, k: int | None = None,
        key: Callable[[Any], Any] | None = None, nested: bool = False,
        accept: Iterable[int] | None = None, cancel_rest: bool = True,
    ) -> Any: ...  # fmt: skip
    @overload
    def join(
        self, what: None = None, *, mode: JoinMode = "all", nested: bool = False, accept: Iterable[int] | None = None
    ) -> Any: ...
    def join(
        self,
        what: Handle[Any] | str | None = None,
        *,
        mode: JoinMode = "all",
        k: int | None = None,
        key: Callable[[Any], Any] | None = None,
        nested: bool = False,
        accept: Iterable[int] | None = None,
        cancel_rest: bool = True,
    ) -> Any:
        """Gather what the branches bound, in branch order, and bind the name in the parent. Does not wait.

        Without `what`: everything the branches have bound since the fork, each name on its own; gives the list where
        it is one name, a dict of lists by name where there are more, and None where there is none.

        What counts is what a branch bound since the fork, in every mode: a branch that bound nothing has MISSING in its place,
        whatever the parent had under that name. A branch that gathered the name in an inner join adds that list's items to
        the list of mode "all" (`nested=True`: the list); in the other modes its list is one value. What is read, mentioned
        (`s.ref`, `s += joined`), handed to a tool and iterated is the same value.

        A branch that was cancelled takes no part, whether it had finished or not: it is left out of lists and text, never
        wins, and "settle" has a CancelledError in its place. `accept` (branch numbers) says instead which branches take part.

        mode: "all" (siblings finish, then the first failure is raised as a JoinError with every result), "settle"
        (a list of values, errors and MISSING), "first" (the first `k` successes), "quorum" (the first value that `k`
        branches agree on), "vote" (the majority), "best" (the value with the highest `key(value)`), "concat" (no
        value: the branches' text is appended to the parent). "first", "quorum" and "vote" cancel the branches that still run once
        they are decided and the program waits for a value or returns, except those that another join of this fork waits for
        (`cancel_rest=False`: none). So joins that are written together see the same branches, however soon one is decided; one
        that is written after a wait has a CancelledError for a loser that had not finished, and its value for one that had.

        Raises:
            BranchError: the parent was itself joined. UnknownNameError: no branch has bound `what` since the fork. SpecError:
            `k` or `key` does not fit the mode, or `accept` names no branches.
        """
        site = self._site(sys._getframe(1))
        request = JoinRequest(mode=mode, k=k, key=key, nested=nested, accept=accept, cancel_rest=bool(cancel_rest))
        return self._fork.join(what, request, site)

    def settle(self, what: Handle[T] | str, *, accept: Iterable[int] | None = None) -> Joined[Any]:
        """`join(what, mode="settle")`: values, errors and MISSING by branch; raises nothing itself."""
        site = self._site(sys._getframe(1))
        return self._fork.join(what, JoinRequest(mode="settle", accept=accept), site)  # type: ignore[no-any-return]

    def first(
        self, what: Handle[T] | str, k: int = 1, *, accept: Iterable[int] | None = None, cancel_rest: bool = True
    ) -> Joined[T]:
        """The first `k` values, in branch order; the other branches are cancelled. See `join` for `accept` and `cancel_rest`."""
        site = self._site(sys._getframe(1))
        return self._fork.join(what, JoinRequest(mode="first", k=k, accept=accept, cancel_rest=cancel_rest), site)  # type: ignore[no-any-return]

    def quorum(
        self, what: Handle[T] | str, k: int, *, accept: Iterable[int] | None = None, cancel_rest: bool = True
    ) -> Lazy[T]:
        """The first value that `k` branches agree on; the other branches are cancelled."""
        site = self._site(sys._getframe(1))
        return self._fork.join(what, JoinRequest(mode="quorum", k=k, accept=accept, cancel_rest=cancel_rest), site)  # type: ignore[no-any-return]

    def vote(self, what: Handle[T] | str, *, accept: Iterable[int] | None = None, cancel_rest: bool = True) -> Lazy[T]:
        """The value of most branches, decided as soon as the rest cannot change it; ties go to the lowest branch."""
        site = self._site(sys._getframe(1))
        return self._fork.join(what, JoinRequest(mode="vote", accept=accept, cancel_rest=cancel_rest), site)  # type: ignore[no-any-return]

    def best(self, what: Handle[T] | str, key: Callable[[T], Any], *, accept: Iterable[int] | None = None) -> Lazy[T]:
        """The value for which `key` is highest; waits for all branches."""
        site = self._site(sys._getframe(1))
        return self._fork.join(what, JoinRequest(mode="best", key=key, accept=accept), site)  # type: ignore[no-any-return]

    def concat(self, *, accept: Iterable[int] | None = None) -> None:
        """Append the text of every branch that takes part to the parent, in branch order."""
        self._fork.join(None, JoinRequest(mode="concat", accept=accept), self._site(sys._getframe(1)))

    def __repr__(self) -> str:
        return f"<{len(self)} branches of {self._fork.fork_id}>"


def _all_or_first_error(ended: Sequence[tuple[Any, Exception | None]], origin: Origin) -> list[Any]:
    results = [value if error is None else error for value, error in ended]
    failed = [(index, error) for index, (_, error) in enumerate(ended) if error is not None]
    if not failed:
        return results
    index, first = failed[0]
    cause: BaseException = first
    while isinstance(cause, JoinError) and cause.__cause__ is not None:  # maps nest; the first cause is what counts
        cause = cause.__cause__
    what = cause.what if isinstance(cause, DslError) else f"{type(cause).__name__}: {cause}"
    raise JoinError(
        f"branch {index} of {len(results)} failed ({len(failed)} in all): {what}",
        results=results,
        hint="catch it in the branch's body, or read .results",
        origin=origin,
    ) from first
