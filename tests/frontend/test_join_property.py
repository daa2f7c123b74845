"""Random nested forks, joins, cancels and renames in several rounds, against a plain model of what they mean."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_dsl import MISSING, RunOptions, State, program, tool
from sglang_dsl.errors import CancelledError
from sglang_dsl.testing import mock

NAMES = ("a", "b")
MODES = ("all", "nested", "settle", "first", "vote", "best", "quorum")


@tool
def a(x: int) -> int:
    return x


@tool
def b(x: int) -> int:
    return x


TOOLS = {"a": a, "b": b}

BIND = st.tuples(st.just("bind"), st.sampled_from(NAMES), st.integers(0, 3))


def forks(steps):
    branch = st.tuples(steps, st.sampled_from(["stays", "stays", "cancelled", "read, then cancelled"]))
    accept = st.none() | st.sets(st.integers(0, 2))
    join = st.tuples(st.sampled_from(NAMES), st.sampled_from(MODES), accept)
    return st.tuples(st.just("fork"), st.lists(branch, min_size=1, max_size=3), st.lists(join, max_size=3))


STEPS = st.recursive(st.lists(BIND, max_size=3), lambda inner: st.lists(BIND | forks(inner), max_size=4), max_leaves=12)


def plain(value):
    """A value in which errors are comparable."""
    return (
        [plain(item) for item in value]
        if isinstance(value, list)
        else "cut"
        if isinstance(value, CancelledError)
        else value
    )


class Listed(list):
    """What a join of mode `all` gathered: another one takes its items in."""


def best_of(value):
    return repr(plain(value))


def expected(mode, offered, taking):
    """What the model says of a join: (value,), or None where it has no winner."""
    present = [offered[i] for i in taking if offered[i] is not MISSING]
    votes = Counter(best_of(value) for value in present)
    match mode:
        case "all":
            return (
                Listed(x for i in taking for x in (offered[i] if isinstance(offered[i], Listed) else [offered[i]])),
            )
        case "nested":
            return (Listed(offered[i] for i in taking),)
        case "settle":
            return ([offered[i] if i in taking else "cut" for i in range(len(offered))],)
        case "first" if present:
            return (present,)
        case "quorum" if len(votes) == 1:
            return (present[0],)
        case "vote" if present:
            return (max(present, key=lambda value: votes[best_of(value)]),)
        case "best" if present:
            return (max(present, key=best_of),)
    return None


def joined(branches, name, mode, accept, present):
    match mode:
        case "all" | "settle":
            return branches.join(name, mode=mode, accept=accept)
        case "nested":
            return branches.join(name, nested=True, accept=accept)
        case "first":
            return branches.first(name, present, accept=accept)
        case "quorum":
            return branches.quorum(name, present, accept=accept)
        case "vote":
            return branches.vote(name, accept=accept, cancel_rest=False)
    return branches.best(name, key=best_of, accept=accept)


def play(s: State, steps, own, found):
    """Do the steps, and what the model says of them; `own`: what the model says this path bound since its fork."""
    for step in steps:
        if step[0] == "bind":
            s.call(TOOLS[step[1]], step[2])
            own[step[1]] = step[2]
            continue
        _, plans, joins = step
        branches = s.fork(len(plans))
        owns = [{} for _ in plans]
        for branch, inner, (steps_inside, end) in zip(branches, owns, plans, strict=True):
            play(branch, steps_inside, inner, found if end == "stays" else [])  # the rest may never have a value
        cut = set()
        for i, (_, end) in enumerate(plans):
            if end == "stays":
                continue
            if end.startswith("read"):
                for name in owns[i]:
                    _ = branches[i].read(name, 10)
            branches[i].cancel()
            cut.add(i)
        for name, mode, accept in joins:
            if all(name not in inner for inner in owns):
                continue
            chosen = None if accept is None or accept & cut or max(accept, default=0) >= len(plans) else sorted(accept)
            taking = [i for i in range(len(plans)) if (i not in cut if chosen is None else i in chosen)]
            offered = [inner.get(name, MISSING) for inner in owns]
            present = sum(offered[i] is not MISSING for i in taking)
            value = expected(mode, offered, taking)
            if value is None:
                continue
            lazy = joined(branches, name, mode, chosen, present)
            own[name] = value[0]
            found.append((mode, lazy, s.ref(name), value[0]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(STEPS)
def test_joins_mean_what_the_model_says(steps):
    def body(s: State):
        found, own = [], {}
        play(s, steps, own, found)
        for mode, lazy, _, value in found:
            assert plain(lazy.value) == plain(list(value) if isinstance(value, list) else value), mode
        for name, value in own.items():
            assert plain(s[name]) == plain(list(value) if isinstance(value, list) else value)

    program(body).run(options=RunOptions(backend=mock({})))


def test_model_itself_knows_the_second_round():
    assert expected("all", [1, MISSING, Listed([2, 3])], [0, 1, 2]) == ([1, MISSING, 2, 3],)
    assert expected("vote", [1, 2, 2], [0, 1]) == (1,)
