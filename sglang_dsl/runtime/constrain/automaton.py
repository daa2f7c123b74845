"""A grammar as an automaton over characters, built while it is walked.

A state is a set of stacks: what may come next, and what after it. Stacks are shared linked lists and both they and the states
are interned, so that a step taken before costs one dictionary look-up. This is a nondeterministic pushdown automaton simulated in
breadth, as in Lang, "Deterministic techniques for efficient non-deterministic parsers" (1974), with counters for repeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from ...errors import ConstraintError
from .charset import CharSet
from .grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from .lengths import shortest, shortest_rules

MAX_STACKS = 4_000  # in one state; more means the grammar is too ambiguous to follow
MAX_STATES = 20_000  # remembered at once; beyond, the memory is emptied and refilled


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """`expr` is next, then `rest`. at: characters or parts done of a Text or Seq. low, high: how often a Repeat still comes."""

    expr: Expr
    at: int
    low: int
    high: int | None
    rest: Stack | None
    shortest: float  # characters of the shortest completion


@dataclass(slots=True, eq=False)
class State:
    """tops: stacks whose next is a character (Text or Chars), in the grammar's order. accepting: the text may end here."""

    tops: tuple[Stack, ...]
    accepting: bool
    steps: dict[str, State | None] = field(default_factory=dict)
    by_match: dict[tuple[Stack, ...], State | None] = field(default_factory=dict)


class Automaton:
    """States and steps of one grammar. Thread-safe; shared by all its matchers."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._lengths = shortest_rules(grammar)
        self._lock = Lock()
        self._stacks: dict[tuple[int, int, int, int | None, int], Stack] = {}
        self._states: dict[tuple[frozenset[Stack], bool], State] = {}
        self.start = self._closed([self._push(grammar.root, None)])

    def step(self, state: State, character: str) -> State | None:
        """The state after one more character; None if it is not allowed.

        Raises:
            ConstraintError: the grammar is too ambiguous here.
        """
        try:
            return state.steps[character]
        except KeyError:
            with self._lock:
                return self._step(state, character)

    def _step(self, state: State, character: str) -> State | None:
        if len(self._states) > MAX_STATES:
            self._forget()
        matching = tuple(top for top in state.tops if first_characters(top, character))
        if matching not in state.by_match:
            state.by_match[matching] = self._closed(map(self._advanced, matching)) if matching else None
        state.steps[character] = state.by_match[matching]
        return state.steps[character]

    def _forget(self) -> None:
        """Empty the memory. States that matchers stand on stay valid: they hold their stacks."""
        for known in self._states.values():
            known.steps.clear()
            known.by_match.clear()
        self._states.clear()
        self._stacks.clear()

    def _advanced(self, top: Stack) -> Stack | None:
        expr = top.expr
        if isinstance(expr, Text) and top.at + 1 < len(expr.text):
            return self._stack(expr, top.at + 1, 0, None, top.rest)
        return top.rest

    def _closed(self, stacks: Iterable[Stack | None]) -> State:
        """The state of these stacks, with everything opened that stands in front of a character."""
        tops: dict[Stack, None] = {}
        seen: set[Stack] = set()
        work = list(stacks)[::-1]
        accepting = False
        while work:
            stack = work.pop()
            if stack is None:
                accepting = True
            elif stack not in seen:
                seen.add(stack)
                if len(seen) > MAX_STACKS:
                    raise ConstraintError(
                        f"the constraint can be read in more than {MAX_STACKS} ways at once",
                        hint="rewrite it so that each text has one reading; avoid nested repeats",
                    )
                if isinstance(stack.expr, (Text, Chars)):
                    tops[stack] = None
                else:
                    work += self._opened(stack)[::-1]
        key = (frozenset(tops), accepting)
        if key not in self._states:
            self._states[key] = State(tuple(tops), accepting)
        return self._states[key]

    def _opened(self, stack: Stack) -> list[Stack | None]:
        """The stacks one stands for, one level further down."""
        rest = stack.rest
        match stack.expr:
            case Seq(parts):
                if not parts:
                    return [rest]
                after = rest if stack.at + 1 == len(parts) else self._stack(stack.expr, stack.at + 1, 0, None, rest)
                return [self._push(parts[stack.at], after)]
            case Alt(options):
                return [self._push(option, rest) for option in options]
            case Ref(name):
                return [self._push(self._grammar.rules[name], rest)]
            case Repeat(item):
                if stack.high == 0:
                    return [rest]
                return [self._push(item, self._again(stack)), *([] if stack.low else [rest])]
            case _:
                raise TypeError(f"{stack.expr} has no inside")

    def _again(self, stack: Stack) -> Stack:
        """What follows one more repetition. It stays on the stack with 0 left, so that one can see what a text is inside of."""
        high = None if stack.high is None else stack.high - 1
        return self._stack(stack.expr, 0, max(stack.low - 1, 0), high, stack.rest)

    def _push(self, expr: Expr, rest: Stack | None) -> Stack:
        low, high = (expr.low, expr.high) if isinstance(expr, Repeat) else (0, None)
        return self._stack(expr, 0, low, high, rest)

    def _stack(self, expr: Expr, at: int, low: int, high: int | None, rest: Stack | None) -> Stack:
        key = (id(expr), at, low, high, id(rest))
        if key not in self._stacks:
            length = self._remaining(expr, at, low) + (rest.shortest if rest else 0)
            self._stacks[key] = Stack(expr, at, low, high, rest, length)
        return self._stacks[key]

    def _remaining(self, expr: Expr, at: int, low: int) -> float:
        match expr:
            case Text(text):
                return len(text) - at
            case Seq(parts):
                return sum(shortest(part, self._lengths) for part in parts[at:])
            case Repeat(item):
                return low * shortest(item, self._lengths) if low else 0
            case _:
                return shortest(expr, self._lengths)


def first_characters(top: Stack, character: str) -> bool:
    """Whether this character may come next on a stack of `State.tops`."""
    expr = top.expr
    if isinstance(expr, Text):
        return expr.text[top.at] == character
    return isinstance(expr, Chars) and character in expr.chars


def next_set(top: Stack) -> CharSet:
    """The characters that may come next on a stack of `State.tops`."""
    expr = top.expr
    if isinstance(expr, Text):
        return CharSet.of(expr.text[top.at])
    if isinstance(expr, Chars):
        return expr.chars
    raise TypeError(f"{expr} is not a character")
