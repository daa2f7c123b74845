"""How branches come together again: one Join per gathered name, bound in the parent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ..errors import BranchError, RoleError, SpecError, UnknownNameError
from ..ir.nodes import Join
from ..ir.specs import JoinMode
from .bindings import Bound, Convert, Gathered, value_in_join
from .drafting import Cursor, Statement
from .expressions import Handle
from .sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """How branches are to be joined."""

    mode: JoinMode = "all"
    k: int | None = None
    key: Callable[[Any], Any] | None = None
    nested: bool = False

    def check(self, size: int, site: Site) -> None:
        """Raise SpecError where the mode is unknown, or the options do not fit it or the number of branches."""
        if self.mode not in get_args(JoinMode):
            raise SpecError(
                f"mode={self.mode!r} is unknown", hint=f"one of {', '.join(get_args(JoinMode))}", origin=site.origin
            )
        needs_k = self.mode in ("first", "quorum")
        if needs_k and (isinstance(self.k, bool) or not isinstance(self.k, int) or not 1 <= self.k <= size):
            raise SpecError(
                f"mode {self.mode!r} of {size} branches with k={self.k!r}",
                hint=f"give k between 1 and {size}",
                origin=site.origin,
            )
        if not needs_k and self.k is not None:
            raise SpecError(f"mode {self.mode!r} takes no k", hint="use mode='first' or 'quorum'", origin=site.origin)
        if (self.mode == "best") != (self.key is not None):
            what = "mode 'best' needs a key" if self.mode == "best" else f"mode {self.mode!r} takes no key"
            raise SpecError(what, hint="branches.best(x, key=function)", origin=site.origin)


def gather(
    parent: Cursor,
    fork_id: str,
    branches: Sequence[Cursor],
    what: Handle[Any] | str,
    request: JoinRequest,
    site: Site,
) -> Gathered:
    """Join the branches' values of one name or handle in the parent. Closes the branches to appends."""
    parts = [_bound_in(branch, what) for branch in branches]
    if not any(parts):
        raise UnknownNameError(
            f"no branch has bound {what!r}", hint="append the handle to a branch before the join", origin=site.origin
        )
    statement = parent.draft(site)
    name = what if isinstance(what, str) else what.name
    gathered = _push(statement, fork_id, branches, name, parts, request)
    parent.commit(statement)
    _close(branches, site)
    if name is not None:
        parent.rebind(name, gathered)
    return gathered


def gather_text(parent: Cursor, fork_id: str, branches: Sequence[Cursor], site: Site, mode: JoinMode) -> Gathered:
    """Join branches of which no value is wanted: only their text (`concat`), or only their end.

    Raises:
        RoleError: text that begins or ends a turn of its own would be appended.
    """
    if mode == "concat":
        _check_turns(parent, branches, site)
    statement = parent.draft(site)
    gathered = _push(statement, fork_id, branches, None, [None] * len(branches), JoinRequest(mode=mode))
    parent.commit(statement)
    _close(branches, site)
    return gathered


def new_names(branches: Sequence[Cursor], before: dict[str, Any]) -> list[str]:
    """Names that some branch has bound since the fork, in order of appearance."""
    found: dict[str, None] = {}
    for branch in branches:
        found.update((name, None) for name, bound in branch.names.items() if before.get(name) is not bound)
    return list(found)


def check_parent(parent: Cursor, site: Site) -> None:
    """Raise BranchError where the state that forked is over itself."""
    if parent.line.closed is not None:
        raise BranchError(
            f"the state that made this fork was itself joined already, at {parent.line.closed}",
            hint="join inner branches before outer ones",
            origin=site.origin,
        )


def _bound_in(branch: Cursor, what: Handle[Any] | str) -> Bound | None:
    bound = branch.names.get(what) if isinstance(what, str) else branch.line.handles.get(what)
    if bound is None and isinstance(what, Handle) and what.name is not None:
        return branch.names.get(what.name)  # gathered by name in an inner join of this branch
    return bound


def _push(
    statement: Statement,
    fork_id: str,
    branches: Sequence[Cursor],
    name: str | None,
    parts: Sequence[Bound | None],
    request: JoinRequest,
) -> Gathered:
    key = None
    if request.key is not None:
        convert = next((part.convert for part in parts if part is not None), None)
        key = statement.register(_key_of(request.key), _on_typed(request.key, convert))
    node_id = statement.push(
        Join,
        fork=fork_id,
        name=name,
        mode=request.mode,
        tips=tuple(branch.line.tip for branch in branches),
        values=tuple(value_in_join(part, nested=request.nested) for part in parts),
        k=request.k,
        key=key,
    )
    return Gathered(node_id, parts, request.mode, label=f"join of {name!r}" if name else "join", nested=request.nested)


def _check_turns(parent: Cursor, branches: Sequence[Cursor], site: Site) -> None:
    for index, branch in enumerate(branches):
        if branch.line.role != parent.line.role:
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


def _on_typed(key: Callable[[Any], Any], convert: Convert | None) -> Callable[[Any], Any]:
    """The key, called with the value as the user would read it."""
    return key if convert is None else lambda value: key(convert(value))
