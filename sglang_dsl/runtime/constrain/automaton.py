"""A grammar as an automaton over characters, built while it is walked.

A state is a set of stacks: what may come next, and what after it. Stacks are shared linked lists and both they and the states
are interned, so that a step taken before costs one dictionary look-up. This is a nondeterministic pushdown automaton simulated in
breadth, as in Lang, "Deterministic techniques for efficient non-deterministic parsers" (1974), with counters for repeats.

`shortest` says how short a text an expression can match; from it follow dead parts, emptiness and left recursion. `completion`
walks the automaton to a random text that satisfies the constraint: what a mock answers where nothing is scripted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from threading import Lock

from ...errors import ConstraintError
from .grammar import (
    NOTHING,
    WHITESPACE,
    Alt,
    Chars,
    CharSet,
    Expr,
    Grammar,
    LiteralText,
    Ref,
    Repeat,
    Seq,
    alt,
    repeat,
    seq,
)


def shortest(expr: Expr, rules: Mapping[str, float]) -> float:
    """Characters of the shortest match, given those of the rules; infinity if there is none."""
    match expr:
        case LiteralText(text):
            return len(text)
        case Chars():
            return 1
        case Seq(parts):
            return sum(shortest(part, rules) for part in parts)
        case Alt(options):
            return min((shortest(option, rules) for option in options), default=math.inf)
        case Repeat(item, low, _):
            return low * shortest(item, rules) if low else 0
        case Ref(name):
            return rules[name]


def shortest_rules(grammar: Grammar) -> dict[str, float]:
    """Characters of the shortest match of every rule, by fixpoint from infinity downwards."""
    lengths = dict.fromkeys(grammar.rules, math.inf)
    order = list(grammar.rules)
    changed = True
    while changed:
        changed = False
        for name in order:
            length = shortest(grammar.rules[name], lengths)
            if length < lengths[name]:
                lengths[name], changed = length, True
        order.reverse()  # parts stand before what holds them, references after: each direction settles one kind
    return lengths


def checked(grammar: Grammar, empty_message: str) -> Grammar:
    """The grammar without parts that can never be finished.

    Raises:
        ConstraintError: it matches nothing, a rule begins with itself, or it is too large.
    """
    lengths = shortest_rules(grammar)
    if shortest(grammar.root, lengths) == math.inf:
        raise ConstraintError(
            empty_message, hint="look for contradictory bounds, empty enums and schemas that need themselves"
        )
    _check_left_recursion(grammar, lengths)
    if all(length < math.inf for length in lengths.values()):
        return grammar
    return Grammar(
        _alive(grammar.root, lengths),
        {n: _alive(e, lengths) for n, e in grammar.rules.items() if lengths[n] < math.inf},
    )


def _alive(expr: Expr, lengths: Mapping[str, float]) -> Expr:
    match expr:
        case Ref(name) if lengths[name] == math.inf:
            return NOTHING
        case Seq(parts):
            return seq(*(_alive(part, lengths) for part in parts))
        case Alt(options):
            return alt(*(_alive(option, lengths) for option in options))
        case Repeat(item, low, high):
            alive = _alive(item, lengths)
            return expr if alive is item else repeat(alive, low, high)
        case _:
            return expr


def _check_left_recursion(grammar: Grammar, lengths: Mapping[str, float]) -> None:
    edges = {name: _beginnings(rule, lengths) for name, rule in grammar.rules.items()}
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        work = [(start, False)]
        while work:
            name, leaving = work.pop()
            if leaving:
                path.remove(name)
                done.add(name)
            elif name in path:
                raise ConstraintError(
                    f"{name} refers to itself before anything else",
                    hint="a recursive schema has to go through an object or array",
                )
            elif name not in done:
                path.append(name)
                work.append((name, True))
                work += [(child, False) for child in edges[name]]


def _beginnings(expr: Expr, lengths: Mapping[str, float]) -> set[str]:
    """The rules an expression may begin with."""
    match expr:
        case Ref(name):
            return {name}
        case Alt(options):
            return set().union(*(_beginnings(option, lengths) for option in options))
        case Repeat(item, _, _):
            return _beginnings(item, lengths)
        case Seq(parts):
            found: set[str] = set()
            for part in parts:
                found |= _beginnings(part, lengths)
                if shortest(part, lengths) > 0:
                    break
            return found
        case _:
            return set()


MAX_STACKS = 4_000  # in one state; more means the grammar is too ambiguous to follow
MAX_STATES = 20_000  # remembered at once; beyond, the memory is emptied and refilled


@dataclass(frozen=True, slots=True, eq=False)
class ParseStack:
    """`expr` is next, then `rest`. at: characters or parts done of a LiteralText or Seq. low, high: how often a Repeat still comes."""

    expr: Expr
    at: int
    low: int
    high: int | None
    rest: ParseStack | None
    shortest: float  # characters of the shortest completion


@dataclass(slots=True, eq=False)
class AutomatonState:
    """tops: stacks whose next is a character (LiteralText or Chars), in the grammar's order. accepting: the text may end here."""

    tops: tuple[ParseStack, ...]
    accepting: bool
    steps: dict[str, AutomatonState | None] = field(default_factory=dict)
    by_match: dict[tuple[ParseStack, ...], AutomatonState | None] = field(default_factory=dict)


class Automaton:
    """States and steps of one grammar. Thread-safe; shared by all its matchers."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._lengths = shortest_rules(grammar)
        self._lock = Lock()
        self._stacks: dict[tuple[int, int, int, int | None, int], ParseStack] = {}
        self._states: dict[tuple[frozenset[ParseStack], bool], AutomatonState] = {}
        self.start = self._closed([self._push(grammar.root, None)])

    def step(self, state: AutomatonState, character: str) -> AutomatonState | None:
        """The state after one more character; None if it is not allowed.

        Raises:
            ConstraintError: the grammar is too ambiguous here.
        """
        try:
            return state.steps[character]
        except KeyError:
            with self._lock:
                return self._step(state, character)

    def _step(self, state: AutomatonState, character: str) -> AutomatonState | None:
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

    def _advanced(self, top: ParseStack) -> ParseStack | None:
        expr = top.expr
        if isinstance(expr, LiteralText) and top.at + 1 < len(expr.text):
            return self._stack(expr, top.at + 1, 0, None, top.rest)
        return top.rest

    def _closed(self, stacks: Iterable[ParseStack | None]) -> AutomatonState:
        """The state of these stacks, with everything opened that stands in front of a character."""
        tops: dict[ParseStack, None] = {}
        seen: set[ParseStack] = set()
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
                if isinstance(stack.expr, (LiteralText, Chars)):
                    tops[stack] = None
                else:
                    work += self._opened(stack)[::-1]
        key = (frozenset(tops), accepting)
        if key not in self._states:
            self._states[key] = AutomatonState(tuple(tops), accepting)
        return self._states[key]

    def _opened(self, stack: ParseStack) -> list[ParseStack | None]:
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

    def _again(self, stack: ParseStack) -> ParseStack:
        """What follows one more repetition. It stays on the stack with 0 left, so that one can see what a text is inside of."""
        high = None if stack.high is None else stack.high - 1
        return self._stack(stack.expr, 0, max(stack.low - 1, 0), high, stack.rest)

    def _push(self, expr: Expr, rest: ParseStack | None) -> ParseStack:
        low, high = (expr.low, expr.high) if isinstance(expr, Repeat) else (0, None)
        return self._stack(expr, 0, low, high, rest)

    def _stack(self, expr: Expr, at: int, low: int, high: int | None, rest: ParseStack | None) -> ParseStack:
        key = (id(expr), at, low, high, id(rest))
        if key not in self._stacks:
            length = self._remaining(expr, at, low) + (rest.shortest if rest else 0)
            self._stacks[key] = ParseStack(expr, at, low, high, rest, length)
        return self._stacks[key]

    def _remaining(self, expr: Expr, at: int, low: int) -> float:
        match expr:
            case LiteralText(text):
                return len(text) - at
            case Seq(parts):
                return sum(shortest(part, self._lengths) for part in parts[at:])
            case Repeat(item):
                return low * shortest(item, self._lengths) if low else 0
            case _:
                return shortest(expr, self._lengths)


def first_characters(top: ParseStack, character: str) -> bool:
    """Whether this character may come next on a stack of `AutomatonState.tops`."""
    expr = top.expr
    if isinstance(expr, LiteralText):
        return expr.text[top.at] == character
    return isinstance(expr, Chars) and character in expr.chars


def next_set(top: ParseStack) -> CharSet:
    """The characters that may come next on a stack of `AutomatonState.tops`."""
    expr = top.expr
    if isinstance(expr, LiteralText):
        return CharSet.of(expr.text[top.at])
    if isinstance(expr, Chars):
        return expr.chars
    raise TypeError(f"{expr} is not a character")


_USUAL = CharSet.of_ranges([(ord("a"), ord("z"))])
_COMMON = CharSet.of_ranges([(0x20, 0x7E)])
_CLASS_WEIGHT = 6  # of a character class against a fixed text: strings get some length


def completion(automaton: Automaton, text: str, rng: Random, free_characters: int) -> str:
    """A random text such that `text` + it satisfies the constraint; "" if `text` does already and must end.

    After about `free_characters` choices the shortest way to the end is taken.

    Raises:
        ValueError: nothing that begins with `text` satisfies the constraint.
    """
    state: AutomatonState | None = automaton.start
    for character in text:
        state = automaton.step(state, character) if state else None
    if state is None:
        raise ValueError(f"no text that begins with {text[-40:]!r} satisfies the constraint")
    written: list[str] = []
    while not _ends(state, rng, hurry=len(written) >= free_characters):
        top = _chosen(state, rng, hurry=len(written) >= free_characters)
        written.append(_character(top, rng))
        following = automaton.step(state, written[-1])
        if following is None:
            raise ValueError("the automaton refused its own character")
        state = following
    return "".join(written)


def _ends(state: AutomatonState, rng: Random, *, hurry: bool) -> bool:
    return state.accepting and (hurry or not state.tops or rng.random() < 1 / (1 + _CLASS_WEIGHT))


def _chosen(state: AutomatonState, rng: Random, *, hurry: bool) -> ParseStack:
    """A way to go on; white space only where there is no other."""
    tops = [top for top in state.tops if next_set(top) != WHITESPACE] or list(state.tops)
    if hurry:
        return min(tops, key=lambda top: top.shortest)
    return rng.choices(tops, [_CLASS_WEIGHT if isinstance(top.expr, Chars) else 1 for top in tops])[0]


def _character(top: ParseStack, rng: Random) -> str:
    members = _legible(next_set(top))
    return members.character(rng.randrange(len(members)))


@lru_cache(maxsize=256)
def _legible(members: CharSet) -> CharSet:
    """The most legible part of a set."""
    return members & _USUAL or members & _COMMON or members
