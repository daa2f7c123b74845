"""When a join is decided, and what it is worth. Pure: branches in, verdict out.

    mode      decided                                        value
    all       every branch has ended                         list; any failure is a JoinError that holds every result
    settle    every branch has ended                         list of values, errors and MISSING
    first     k branches have succeeded                      list of those k values, in branch order
    quorum    k branches agree on a value                    that value
    vote      no other value can overtake the leader         that value; a tie goes to the lowest branch
    best      every branch has ended                         the value with the highest key; a tie goes to the lowest branch
    concat    every branch has ended                         list, like all; the branches' text is appended

Failed branches never win. If a mode can no longer succeed, the join fails at once, holding what there is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CancelledError, JoinError
from ...ir.execution import MISSING
from ...ir.nodes import Join, taking_part


@dataclass(frozen=True, slots=True)
class Ended:
    """A branch that has ended: its index, and its value or its error. In the order in which branches ended.

    ballot: the value as text, where values are compared (`ballot_of`).
    """

    branch: int
    value: Any = None
    error: Exception | None = None
    ballot: str = ""

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


def decide(join: Join, size: int, ended: Sequence[Ended]) -> Verdict | None:
    """The verdict, or None while the branches that still run matter. Mode `best` compares the values themselves here: a
    key is the user's own code, which is never called from here (`branches.Race`).

    Args:
        size: number of branches, those included that take no part.
        ended: those that take part and have ended, in order.
    """
    good = [branch for branch in ended if branch.succeeded]
    running = size - len(set(join.skipped)) - len(ended)
    match join.mode:
        case "first":
            return _first(join, size, ended, good, running)
        case "quorum":
            return _quorum(join, size, ended, good, running)
        case "vote":
            return _vote(join, size, ended, good, running)
    if running:
        return None
    if join.mode == "best":
        return _best(join, size, ended, good)
    results = results_of(join, size, ended)
    winners = tuple(branch.branch for branch in good)
    failed = [branch for branch in ended if branch.error is not None]
    if failed and join.mode != "settle":
        return _failed(join, size, ended, _names_failures(failed))
    return Verdict(results if join.mode == "settle" else taking_part(join, results), winners)


def results_of(join: Join, size: int, ended: Sequence[Ended]) -> list[Any]:
    """Per branch its value or its error; for one that was cut short, or takes no part, a CancelledError."""
    results: list[Any] = [CancelledError(f"branch {i} was cancelled: the join was decided") for i in range(size)]
    for index in join.skipped:
        results[index] = CancelledError(f"branch {index} takes no part in the join: it was cancelled, or not accepted")
    for branch in ended:
        results[branch.branch] = branch.value if branch.error is None else branch.error
    return results


def _first(join: Join, size: int, ended: Sequence[Ended], good: list[Ended], running: int) -> Verdict | None:
    wanted = join.k or 1
    if len(good) >= wanted:
        winners = good[:wanted]
        return Verdict([b.value for b in sorted(winners, key=lambda b: b.branch)], tuple(b.branch for b in winners))
    if len(good) + running < wanted:
        return _failed(
            join, size, ended, f"only {len(good) + running} of the {wanted} wanted branches can still succeed"
        )
    return None


def _quorum(join: Join, size: int, ended: Sequence[Ended], good: list[Ended], running: int) -> Verdict | None:
    wanted = join.k or size // 2 + 1
    ballots = _ballots(good)
    for group in ballots:
        if len(group) >= wanted:
            return Verdict(group[0].value, tuple(b.branch for b in group[:wanted]))
    if running + max(map(len, ballots), default=0) < wanted:
        return _failed(join, size, ended, f"no value can still be agreed on by {wanted} branches")
    return None


def _vote(join: Join, size: int, ended: Sequence[Ended], good: list[Ended], running: int) -> Verdict | None:
    if not good:
        return None if running else _failed(join, size, ended, "no branch has a value to vote for")
    leader, *others = sorted(([b.branch for b in group] for group in _ballots(good)), key=_standing)
    if running:
        undecided = sorted(set(range(size)) - {branch.branch for branch in ended} - set(join.skipped))
        if any(_standing([*rival, *undecided]) < _standing(leader) for rival in [[], *others]):
            return None
    return Verdict(next(b.value for b in good if b.branch == leader[0]), tuple(leader))


def _standing(branches: Sequence[int]) -> tuple[int, int]:
    """Sorts the groups of branches that agree: the largest first, and of equal ones that with the lowest branch."""
    return -len(branches), min(branches)


def _best(join: Join, size: int, ended: Sequence[Ended], good: list[Ended]) -> Verdict:
    if not good:
        return _failed(join, size, ended, "no branch has a value to compare")
    try:
        winner = max(sorted(good, key=lambda b: b.branch), key=lambda b: b.value)
    except TypeError as error:
        return _failed(join, size, ended, f"its values cannot be compared: {error}", cause=error)
    return Verdict(winner.value, (winner.branch,))


def key_failed(join: Join, size: int, ended: Sequence[Ended], said: str, cause: BaseException | None) -> Verdict:
    """The verdict where the key of mode `best` raised, or gave what cannot be compared."""
    return _failed(join, size, ended, f"its key raised {said}", cause=cause)


def ballot_of(join: Join, value: Any) -> str:
    """What equal values have in common in a join that compares them. Values are JSON, so equal means equal JSON."""
    return json.dumps(value, sort_keys=True, default=repr) if join.mode in ("quorum", "vote") else ""


def _ballots(good: Sequence[Ended]) -> list[list[Ended]]:
    """Branches with equal values, in the order in which the values came up."""
    groups: dict[str, list[Ended]] = {}
    for branch in good:
        groups.setdefault(branch.ballot, []).append(branch)
    return list(groups.values())


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
