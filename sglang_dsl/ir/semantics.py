"""What nodes mean: what they refer to, what those values are worth, which arm is taken, how a join is decided.

Whoever runs a graph, makes one, or draws one asks here, so that all of them agree. Nothing here runs code of a user's.

    every_node, references_of, mapped     the walk over nodes, and over what they refer to
    evaluate                              the value of an expression
    same, is_among, arm_of, taken_by      which values are equal in JSON, and which arm of a switch a value takes
    misfit                                whether an argument has the lists and keys that a trace took for granted
    Count, ballot_of                      when a join is decided, and what it is worth: branches in, verdict out
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from ..errors import CancelledError, JoinError
from .graph import Graph
from .nodes import (
    Arm,
    Concat,
    Constant,
    DictOf,
    Expression,
    Join,
    Json,
    ListOf,
    Node,
    Reference,
    subgraphs,
    taking_part,
)
from .operations import apply_all, text_of, too_deep
from .outcome import MISSING
from .specs import shown

N = TypeVar("N", bound=Node)
T = TypeVar("T")
Lookup: TypeAlias = Callable[[str], Any]  # node id -> its value
Translate: TypeAlias = Callable[[Reference], Reference]
Rename: TypeAlias = Callable[[str], str]


# --- what nodes refer to ------------------------------------------------------------------------------------------------


def every_node(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes of a graph in order, each followed by those of the sub-graphs it holds."""
    for node in nodes:
        yield node
        for inner in subgraphs(node):
            yield from every_node(inner)


def references_of(node: Node) -> list[Reference]:
    """All that a node and its sub-graphs refer to the value of: what they mention, what decided that they run."""
    found: list[Reference] = []

    def note(reference: Reference) -> Reference:
        found.append(reference)
        return reference

    mapped(node, note)
    return found


def mapped(node: N, translate: Translate, rename: Rename | None = None) -> N:
    """The node with every reference in it replaced, in its sub-graphs too.

    rename: what becomes of the ids of nodes, where they say which node this is and where it stands.
    """
    changes: dict[str, Any] = {}
    if node.control:
        changes["control"] = tuple(translate(Reference(node_id)).node_id for node_id in node.control)
    for name in _referring_fields(node.__class__):  # type: ignore[arg-type]  # a class has a hash
        changes[name] = replaced(getattr(node, name), translate, rename)
    if rename is not None:
        changes |= {"id": rename(node.id), "context": node.context and rename(node.context)}
        if isinstance(node, Join):
            changes["tips"] = tuple(map(rename, node.tips))
    return replace(node, **changes) if any(getattr(node, name) is not new for name, new in changes.items()) else node


def renaming(names: Mapping[str, str]) -> Translate:
    """What makes references of nodes by one id references by another."""
    return lambda reference: Reference(names.get(reference.node_id, reference.node_id), reference.operations)


def replaced(value: T, translate: Translate, rename: Rename | None = None) -> T:
    """An expression, or anything that a node holds, with every reference in it replaced: see `mapped`."""
    found: Any = value
    match value:
        case Reference():
            found = translate(value)
        case ListOf(items) | Concat(items) if (inner := replaced(items, translate, rename)) is not items:
            found = type(value)(inner)
        case DictOf(pairs) if (changed := replaced(pairs, translate, rename)) is not pairs:
            found = DictOf(changed)
        case Arm():
            graph, result = replaced(value.graph, translate, rename), replaced(value.result, translate, rename)
            found = Arm(value.values, graph, result)
        case Graph():
            found = Graph((mapped(node, translate, rename) for node in value), name=value.name).freeze()
        case Node():
            found = mapped(value, translate, rename)
        case tuple():
            parts = [replaced(part, translate, rename) for part in value]
            if not all(map(operator.is_, parts, value)):
                found = type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    return found  # type: ignore[no-any-return]  # of the same kind


_PLAIN = re.compile(
    r"(?:\W|\b(?:Any|ConstraintSpec|Decode|JoinMode|Json|None|Objects|Origin|Reasoning|Role|SamplingSpec|SelectMethod"
    r"|bool|float|int|str|tuple)\b)*"
)


@cache
def _referring_fields(kind: type) -> tuple[str, ...]:
    """The fields of a kind of node that can hold a reference: all whose annotations name more than plain data."""
    return tuple(field.name for field in fields(kind) if not _PLAIN.fullmatch(str(field.type)))


# --- what expressions are worth -----------------------------------------------------------------------------------------


def evaluate(expression: Expression, lookup: Lookup) -> Any:
    """The value of an expression. Raises GraphError where an operation does not fit its value."""
    match expression:
        case Constant(value):
            return value
        case Reference(node_id, operations):
            return apply_all(lookup(node_id), operations)
        case ListOf(items):
            return [evaluate(item, lookup) for item in items]
        case DictOf(pairs):
            return {key: evaluate(item, lookup) for key, item in pairs}
        case Concat(parts):
            return "".join(text_of(evaluate(part, lookup)) for part in parts)


# --- which values are one, and which arm is taken -----------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Whether two values are one in JSON: 5 and 5.0 are, True and 1 are not."""
    waiting, seen = [(one, other)], set[tuple[int, int]]()
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, (list, dict)):  # one that holds itself is compared once
            if (id(one), id(other)) in seen:
                continue
            seen.add((id(one), id(other)))
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            waiting.extend((value, other[key]) for key, value in one.items())
        elif isinstance(one, bool) != isinstance(other, bool) or one != other:
            return False
    return True


def same_key(value: Any) -> Hashable:
    """What JSON values have in common that are one: `same_key(a) == same_key(b)` says what `same(a, b)` does."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return list, tuple(map(same_key, value))
    if isinstance(value, dict):
        return dict, frozenset((key, same_key(item)) for key, item in value.items())
    return value  # type: ignore[no-any-return]  # text, a number, null


def is_among(value: Any, values: Iterable[Any]) -> bool:
    """Whether a value is one of some, in JSON."""
    return any(same(value, each) for each in values)


def arm_of(arms: Iterable[Arm], value: Any) -> int | None:
    """The index of the arm that a value takes: see `taken_by`."""
    return taken_by(value, (arm.values for arm in arms))


def taken_by(value: Any, named: Iterable[Iterable[Any] | None]) -> int | None:
    """The index of the arm that a value takes: the first one that names it, else the one for all others, else None.

    named: the values of each arm; None for all others.
    """
    rest = None
    for index, values in enumerate(named):
        if values is None:
            rest = index
        elif is_among(value, values):
            return index
    return rest


_TYPES: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}


def misfit(structure: Json, value: Any, name: str) -> str:
    """Where `value` differs from `structure` (see `Input`), or "" where it fits. `name`: of the argument."""
    match structure:
        case list():
            if not isinstance(value, (list, tuple)) or len(value) != len(structure):
                return f"{name} has to be a list of {len(structure)} items, and is {_shown(value)}"
            inner = ((s, v, f"{name}[{i}]") for i, (s, v) in enumerate(zip(structure, value, strict=True)))
        case dict():
            if not isinstance(value, dict) or list(value) != list(structure):
                return f"{name} has to be a dict with the keys {', '.join(structure)}, and is {_shown(value)}"
            inner = ((s, value[k], f"{name}[{k!r}]") for k, s in structure.items())
        case str() if not _is_a(value, structure):
            return f"{name} has to be a {structure}, and is {_shown(value)}"
        case _:
            return ""
    return next(filter(None, (misfit(*each) for each in inner)), "")


def _is_a(value: Any, type_name: str) -> bool:
    kind = _TYPES.get(type_name)
    return kind is None or (isinstance(value, kind) and isinstance(value, bool) == (type_name == "bool"))


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {shown(value)}"
    return text if len(text) <= 60 else text[:57] + "..."


# --- how a join is decided ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """A branch that has ended: its index, and its value or its error. In the order in which branches ended.

    ballot: the value as text, where values are compared (`ballot_of`).
    """

    branch: int
    value: Any = None
    error: Exception | None = None
    ballot: Hashable = ""

    @property
    def succeeded(self) -> bool:
        """Whether the branch has a value to offer."""
        return self.error is None and self.value is not MISSING


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a join. winners: the branches that decided, in deciding order."""

    value: Any = None
    winners: tuple[int, ...] = ()
    error: JoinError | None = None


class Count:
    """The branches of a join that have ended, counted as they do: each costs the same, however many there are.

        mode      decided                                        value
        all       every branch has ended                         list; any failure is a JoinError that holds every result
        settle    every branch has ended                         list of values, errors and MISSING
        first     k branches have succeeded                      list of those k values, in branch order
        quorum    k branches agree on a value                    that value
        vote      no other value can overtake the leader         that value; a tie goes to the lowest branch
        best      every branch has ended                         the value with the highest key; a tie goes to the lowest branch
        concat    every branch has ended                         list, like all; the branches' text is appended

    Failed branches never win. If a mode can no longer succeed, the join fails at once, holding what there is.

        Mode `best` compares the values themselves here: a key is the user's own code, which is never called from here
        (`branches.Race`).
    """

    def __init__(self, join: Join, size: int) -> None:
        self.join = join
        self.size = size
        self.ended: list[Ended] = []
        self.good: list[Ended] = []
        self.running = size - len(set(join.skipped))
        self._votes = Votes()
        self._open = sorted(set(range(size)) - set(join.skipped), reverse=True) if join.mode == "vote" else []
        self._closed: set[int] = set()

    def add(self, branch: Ended) -> None:
        """One more has ended."""
        self.ended.append(branch)
        self.running -= 1
        self._closed.add(branch.branch)
        if branch.succeeded:
            self.good.append(branch)
            if self.join.mode in ("quorum", "vote"):
                self._votes.add(branch)

    def verdict(self) -> Verdict | None:
        """The verdict, or None while the branches that still run matter."""
        match self.join.mode:
            case "first":
                return self._first()
            case "quorum":
                return self._quorum()
            case "vote":
                return self._vote()
        if self.running:
            return None
        if self.join.mode == "best":
            return self._best()
        failed = [branch for branch in self.ended if branch.error is not None]
        if failed and self.join.mode != "settle":
            return self._failed(_names_failures(failed))
        results = results_of(self.join, self.size, self.ended)
        winners = tuple(branch.branch for branch in self.good)
        return Verdict(results if self.join.mode == "settle" else taking_part(self.join, results), winners)

    def _first(self) -> Verdict | None:
        wanted, good = self.join.k or 1, self.good
        if len(good) >= wanted:
            winners = good[:wanted]
            return Verdict([b.value for b in sorted(winners, key=_index)], tuple(map(_index, winners)))
        if len(good) + self.running < wanted:
            return self._failed(f"only {len(good) + self.running} of the {wanted} wanted branches can still succeed")
        return None

    def _quorum(self) -> Verdict | None:
        wanted, votes = self.join.k or self.size // 2 + 1, self._votes
        if votes.most >= wanted:
            group = next(group for group in votes.groups.values() if len(group) >= wanted)
            return Verdict(group[0].value, tuple(map(_index, group[:wanted])))
        if self.running + votes.most < wanted:
            return self._failed(f"no value can still be agreed on by {wanted} branches")
        return None

    def _vote(self) -> Verdict | None:
        if not self.good:
            return None if self.running else self._failed("no branch has a value to vote for")
        while self._open and self._open[-1] in self._closed:
            self._open.pop()
        leader = self._votes.leader(self.running, self._open[-1] if self.running else None)
        return None if leader is None else Verdict(leader[0].value, tuple(map(_index, leader)))

    def _best(self) -> Verdict:
        if not self.good:
            return self._failed("no branch has a value to compare")
        try:
            winner = max(sorted(self.good, key=_index), key=lambda b: b.value)
        except TypeError as error:
            return self._failed(f"its values cannot be compared: {error}", cause=error)
        return Verdict(winner.value, (winner.branch,))

    def key_failed(self, said: str, cause: BaseException | None) -> Verdict:
        """The verdict where the key of mode `best` raised, or gave what cannot be compared."""
        return self._failed(f"its key raised {said}", cause=cause)

    def _failed(self, why: str, *, cause: BaseException | None = None) -> Verdict:
        return _failed(self.join, self.size, self.ended, why, cause=cause)


class Votes:
    """Branches by what they say. groups: those that agree, in the order in which their values came up."""

    def __init__(self) -> None:
        self.groups: dict[Hashable, list[Ended]] = {}
        self.most = 0  # branches that agree on the value of `_first`
        self._first: Hashable = ""
        self._second_most = 0  # on any other
        self._by_size: dict[int, set[Hashable]] = {}
        self._lowest: dict[Hashable, int] = {}

    def add(self, branch: Ended) -> None:
        """One more says something."""
        ballot = branch.ballot
        group = self.groups.setdefault(ballot, [])
        group.append(branch)
        size = len(group)
        self._by_size.get(size - 1, set()).discard(ballot)
        self._by_size.setdefault(size, set()).add(ballot)
        self._lowest[ballot] = min(branch.branch, self._lowest.get(ballot, branch.branch))
        if ballot == self._first:
            self.most = size
        elif size > self.most:
            self._first, self.most, self._second_most = ballot, size, self.most
        else:
            self._second_most = max(self._second_most, size)

    def leader(self, open_votes: int, lowest_open: int | None) -> list[Ended] | None:
        """The branches that agree on the value that no other can overtake any more, if so many votes are open; a tie goes to the
        value of the lowest branch.
        """
        if open_votes and self._second_most + open_votes > self.most:
            return None
        first = min(self._by_size[self.most], key=self._lowest.__getitem__)
        if lowest_open is not None and self._second_most + open_votes == self.most:
            rivals = self._by_size.get(self._second_most, set()) if self._second_most else {""}
            lowest = min(self._lowest.get(rival, lowest_open) for rival in rivals)
            if min(lowest, lowest_open) < self._lowest[first]:
                return None
        return self.groups[first]


def _index(branch: Ended) -> int:
    return branch.branch


def results_of(join: Join, size: int, ended: Sequence[Ended]) -> list[Any]:
    """Per branch its value or its error; for one that was cut short, or takes no part, a CancelledError."""
    results: list[Any] = [CancelledError(f"branch {i} was cancelled: the join was decided") for i in range(size)]
    for index in join.skipped:
        results[index] = CancelledError(f"branch {index} takes no part in the join: it was cancelled, or not accepted")
    for branch in ended:
        results[branch.branch] = branch.value if branch.error is None else branch.error
    return results


def ballot_of(join: Join, value: Any) -> Hashable:
    """What equal values have in common in a join that compares them: equal JSON; of objects, equal data. No code of theirs is
    run: objects that are no data agree with themselves only.
    """
    if join.mode not in ("quorum", "vote"):
        return ""
    try:
        try:
            return json.dumps(value, sort_keys=True)
        except (TypeError, ValueError):
            return key_of(value)
    except RecursionError:
        raise too_deep() from None


def key_of(value: Any) -> Hashable:
    """Equal for equal data. Other objects are equal to themselves only; no code of theirs is run."""
    kind = type(value)
    if kind is float:
        return kind, repr(value)
    if kind in (str, int, bool, bytes, type(None), Decimal, date, datetime, time, timedelta, UUID):
        return kind, value
    if kind in (list, tuple):
        return kind, tuple(map(key_of, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(key_of, value))
    if kind is dict:
        return kind, tuple((key_of(key), key_of(item)) for key, item in value.items())
    if isinstance(value, Enum):
        return kind, value.name
    if is_dataclass(value):
        held = {field.name: getattr(value, field.name, None) for field in fields(value)} | getattr(
            value, "__dict__", {}
        )
        return kind, key_of(held)
    if hasattr(kind, "__pydantic_fields__"):
        return kind, key_of(vars(value)), key_of(value.__pydantic_extra__), key_of(value.__pydantic_private__)
    return kind, id(value)


def _failed(join: Join, size: int, ended: Sequence[Ended], why: str, *, cause: BaseException | None = None) -> Verdict:
    error = JoinError(
        f"the join of {join.name or join.fork!r} ({join.mode}) failed: {why}",
        results=results_of(join, size, ended),
        hint="error.results holds every branch's value or error; join with mode='settle' to get them as a list",
        origin=join.origin,
    )
    error.__cause__ = cause or next((branch.error for branch in ended if branch.error is not None), None)
    return Verdict(error=error)


def _names_failures(failed: Sequence[Ended]) -> str:
    worst = min(failed, key=lambda b: b.branch)
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    error, inner = worst.error, 0
    while isinstance(error, JoinError) and isinstance(
        error.__cause__, Exception
    ):  # joins nest; the first cause is what counts
        error, inner = error.__cause__, inner + 1
    depth = f", {inner} joins further in," if inner > 1 else ", in a join of its own," if inner else ""
    return f"branch {worst.branch}{depth} raised {type(error).__name__}: {getattr(error, 'what', error)}{more}"
