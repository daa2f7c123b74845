"""How branches come together again: one Join per gathered name, bound in the parent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ..errors import BranchError, ProgramError, RoleError, SpecError, UnknownNameError
from ..ir.nodes import Join
from ..ir.specs import JoinMode, shown
from .bindings import Bound, Gathered
from .checks import check_takes_value
from .drafting import Cursor, Statement
from .expressions import Handle
from .sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """How branches are to be joined. See `Branches.join`."""

    mode: JoinMode = "all"
    k: int | None = None
    key: Callable[[Any], Any] | None = None
    nested: bool = False
    accept: Iterable[int] | None = None
    cancel_rest: bool = True

    def check(self, size: int, site: Site) -> None:
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

    def skipped(self, branches: Sequence[Cursor], site: Site) -> tuple[int, ...]:
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


def _check_name(what: object, site: Site) -> None:
    if not isinstance(what, (str, Handle)):
        hint = "branches.join('name'), or branches.join(handle) with handle = gen(...)"
        raise ProgramError(
            f"branches are joined on a name or a handle, not on {shown(what)}", hint=hint, origin=site.origin
        )


def _no_branches(accept: object, size: int, site: Site) -> SpecError:
    return SpecError(
        f"accept={accept!r} does not name branches of {size}",
        hint=f"a list of numbers from 0 to {size - 1}",
        origin=site.origin,
    )


def gather(
    parent: Cursor,
    fork_id: str,
    branches: Sequence[Cursor],
    what: Handle[Any] | str,
    request: JoinRequest,
    skipped: tuple[int, ...],
    site: Site,
) -> Gathered:
    """Join the branches' values of one name or handle in the parent. Closes the branches to appends."""
    _check_name(what, site)
    bound = [branch.bound_since_fork(what) for branch in branches]
    if not any(part is not None for part in bound):
        raise UnknownNameError(
            f"no branch has bound {what!r} since the fork",
            hint="append the handle to a branch before the join",
            origin=site.origin,
        )
    parts = [None if index in skipped else part for index, part in enumerate(bound)]
    statement = parent.draft(site)
    name = what if isinstance(what, str) else what.name
    gathered = _push(statement, fork_id, branches, name, parts, request, skipped)
    parent.commit(statement)
    _close(branches, site)
    if name is not None:
        parent.rebind(name, gathered)
    if isinstance(what, Handle):
        parent.line.gathered[what] = gathered
    return gathered


def gather_text(
    parent: Cursor,
    fork_id: str,
    branches: Sequence[Cursor],
    request: JoinRequest,
    skipped: tuple[int, ...],
    site: Site,
) -> Gathered:
    """Join branches of which no value is wanted: only their text (`concat`), or only their end.

    Raises:
        RoleError: text that begins or ends a turn of its own would be appended.
    """
    if request.mode == "concat":
        _check_turns(parent, branches, skipped, site)
    statement = parent.draft(site)
    gathered = _push(statement, fork_id, branches, None, [None] * len(branches), request, skipped)
    parent.commit(statement)
    _close(branches, site)
    return gathered


def new_names(branches: Sequence[Cursor]) -> list[str]:
    """Names that some branch has bound since the fork, in order of appearance."""
    found: dict[str, None] = {}
    for branch in branches:
        found.update(dict.fromkeys(branch.names.own))
    return list(found)


def check_parent(parent: Cursor, site: Site) -> None:
    """Raise BranchError where the state that forked is over itself."""
    if parent.line.closed is not None:
        raise BranchError(
            f"the state that made this fork was itself joined already, at {parent.line.closed}",
            hint="join inner branches before outer ones",
            origin=site.origin,
        )


def _push(
    statement: Statement,
    fork_id: str,
    branches: Sequence[Cursor],
    name: str | None,
    parts: Sequence[Bound | None],
    request: JoinRequest,
    skipped: tuple[int, ...],
) -> Gathered:
    key = None
    if request.key is not None:
        bound = [part for part in parts if part is not None]
        key = statement.register(_key_of(request.key), _on_typed(request.key, bound))
    label = f"join of {name!r}" if name else "join"
    gathered = Gathered("", parts, request.mode, label=label, nested=request.nested, skipped=skipped)
    gathered.node_id = statement.push(
        Join,
        fork=fork_id,
        name=name,
        mode=request.mode,
        tips=tuple(branch.line.tip for branch in branches),
        values=tuple(map(gathered.taken_of, parts)),
        k=request.k,
        key=key,
        skipped=skipped,
        cancel_rest=request.cancel_rest,
    )
    return gathered


def _check_turns(parent: Cursor, branches: Sequence[Cursor], skipped: Sequence[int], site: Site) -> None:
    for index, branch in enumerate(branches):
        if branch.line.role != parent.line.role and index not in skipped:
            opened, wanted = branch.line.role or "no", parent.line.role or "no"
            raise RoleError(
                f"branch {index} ends with {opened} turn open, its parent has {wanted} turn open",
                hint="close in the branch what it opened, then join its text",
                origin=site.origin,
            )


def _close(branches: Sequence[Cursor], site: Site) -> None:
    for branch in branches:
        branch.line.closed = site.origin


def _key_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _on_typed(key: Callable[[Any], Any], parts: Sequence[Bound]) -> Callable[[Any], Any]:
    """The key, called with the value as the user would read it."""
    if not parts or (parts[0].convert is None and not isinstance(parts[0], Gathered)):
        return key
    return lambda value: key(next((part for part in parts if part.has_made(value)), parts[0]).typed(value))
