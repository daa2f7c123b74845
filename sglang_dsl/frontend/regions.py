"""`switch`, `loop` and `map` in a run: plain Python control flow that the graph knows about.

The arm or body runs here and now, on real values; its nodes note in `control` which value decided that they run. A tracer
records the same calls as Switch, Loop and Map nodes with sub-graphs instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import iscoroutine, iscoroutinefunction
from typing import Any, Protocol

from ..errors import Origin, ProgramError, SpecError
from ..ir.evaluation import same
from .bindings import Bound
from .sites import Site

Body = Callable[[Any], Any]


class Deciding(Protocol):
    """What of a line a decision touches."""

    control: tuple[str, ...]


def run_switch(
    state: Any, line: Deciding, bound: Bound, value: Any, arms: Mapping[Any, Body], default: Body | None, site: Site
) -> Any:
    """Run the arm of `value`. Raises ProgramError where no arm takes it."""
    body = _arm_of(value, arms, default)
    if body is None:
        raise ProgramError(
            f"no arm of the switch takes {value!r}; arms: {', '.join(map(repr, arms))}",
            hint="add the arm, or default=",
            origin=site.origin,
        )
    with decided_by(line, bound):
        return no_coroutine(body(state), "an arm of the switch", site.origin)


def run_loop(
    state: Any,
    line: Deciding,
    body: Body,
    until: Callable[[], Bound] | None,
    stop: Callable[[], bool],
    limit: int,
    site: Site,
) -> Any:
    """Repeat `body` at most `limit` times, until `stop()` after one of them; gives what the last one returned."""
    before = line.control
    result = None
    try:
        for iteration in range(limit):
            result = no_coroutine(body(state), "the body of the loop", site.origin)
            if until is not None and iteration + 1 < limit:
                if stop():
                    break
                line.control = _with(before, until())
    finally:
        line.control = before
    return result


def run_map(branches: Any, items: Sequence[Any], body: Callable[[Any, Any], Any]) -> Any:
    """`body(branch, item)` for each, concurrently; an awaitable of what they give where the body is `async def`."""
    if not is_async(body):
        return branches.map(lambda branch: body(branch, items[branch.index]))

    async def one(branch: Any) -> Any:
        return await body(branch, items[branch.index])

    return branches.map(one)


async def given(value: Any) -> Any:
    """A value that is there already, to be awaited like the results of `async def` bodies."""
    return value


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine: an `async def`, also inside a partial or as `__call__`, or such a program."""
    called = getattr(type(function), "__call__", None)  # noqa: B004  that of its class is what a call calls
    return iscoroutinefunction(function) or iscoroutinefunction(called) or getattr(function, "asynchronous", 0) is True


DECIDE_HINT = (
    "give it a plain `def`; an `async def` program can await the value (`await s.get(x)`) and go on with `if` or `for`"
)
MAP_HINT = "give it a plain `def`; or let the program be `async def`, and `await` the map of an `async def` body"


def check_plain(function: object, what: str, origin: Origin, *, hint: str = DECIDE_HINT) -> None:
    """Raise ProgramError for an `async def` where a plain function is called."""
    if is_async(function):
        raise ProgramError(f"{what} is `async def`, and nobody would await it here", hint=hint, origin=origin)


def no_coroutine(value: Any, what: str, origin: Origin, *, hint: str = DECIDE_HINT) -> Any:
    """The value. Raises ProgramError for a coroutine that nobody would await."""
    if iscoroutine(value):
        value.close()
        raise ProgramError(f"{what} gave a coroutine, and nobody would await it here", hint=hint, origin=origin)
    return value


@contextmanager
def decided_by(line: Deciding, bound: Bound) -> Iterator[None]:
    """What is appended inside runs because of the value of `bound`."""
    before = line.control
    line.control = _with(before, bound)
    try:
        yield
    finally:
        line.control = before


def _with(control: tuple[str, ...], bound: Bound) -> tuple[str, ...]:
    return (*control, bound.node_id) if bound.node_id else control


def _arm_of(value: Any, arms: Mapping[Any, Body], default: Body | None) -> Body | None:
    """The body for a value, by the rule of the graph."""
    return next((body for key, body in arms.items() if same(key, value)), default)


def check_limit(limit: int, site: Site) -> None:
    """Raise SpecError unless `limit` is a whole number above 0."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise SpecError(f"limit={limit!r} is not a whole number above 0", hint="limit=5", origin=site.origin)
