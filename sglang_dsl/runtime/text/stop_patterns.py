r"""Stop patterns that are regular, searched in one pass over the characters as they arrive, however hostile the pattern.

All patterns of a sequence are one automaton. A thread is a state with the place where its match began; of the threads in one
state only that of the earliest place goes on, so a character costs at most one visit of each state, of which there are few.

    text        x  a  a  b          the pattern a+b
    threads        a+@1  a+@1  -> a match from 1

What a single character is (`\w`, `[^a]`, `(?i)k`) is asked of the `regex` library, character by character: a pattern means here
what it means there. What looks at the text around a place (`^`, `$`, `\b`, looking around by one character) guards the way to
the next states, and is decided when the character behind the place is there, or taken for the end of the text so far.

Source: Thompson, Regular expression search algorithm, CACM 11(6), 1968; the threads are those of Pike's sam.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

parser = import_module("re._parser")  # has no types
sre = import_module("re._constants")

MAX_STATES = (
    512  # of one sequence: a character costs at most about a tenth of a millisecond, and mostly two microseconds
)
MAX_CHARACTERS = 4_096  # whose leaves are remembered
_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s"}  # those that change what a single character matches
_CLASSES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
# What Python's parser takes for plain characters and the `regex` library does not: fuzzy matching, classes in classes.
_OTHER_SYNTAX = re.compile(r"\{[^{}]*[^0-9,{}][^{}]*\}|\[[:.=]")

Guard: TypeAlias = Callable[[str, str | None], bool]
"""Whether the way is open: (the character before, or "" at the beginning; the one behind, "" at the end so far, None if unknown)."""
Threads: TypeAlias = list[tuple[int, int]]
"""(place where the match began, state), earliest first."""


class NotRegularError(Exception):
    """No automaton of `MAX_STATES` states can search for the pattern."""


@dataclass(slots=True)
class _State:
    """`leaf`: the character to take first, as an index. `guard`: what has to hold. Then to any of the states `then`; a match is
    there where nothing follows.
    """

    then: tuple[int, ...]
    leaf: int | None = None
    guard: Guard | None = None


class PatternAutomaton:
    """Finds any of several patterns. Immutable but for its memory of characters; shared by all sequences.

    Raises:
        NotRegularError: a pattern needs backtracking, or there are too many states.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._states: list[_State] = [_State(())]
        self._leaves: dict[str, int] = {}
        self._of_character: dict[str, frozenset[int]] = {}
        self.start = self._add(tuple(_Builder(self, pattern).entry for pattern in patterns))
        self._matchers = [_compiled(leaf) for leaf in self._leaves]
        self.guarded = any(state.guard for state in self._states)

    @property
    def size(self) -> int:
        """States."""
        return len(self._states)

    def close(self, threads: Threads, before: str, behind: str | None) -> tuple[Threads, int | None]:
        """(the threads that wait for a character, where the earliest match that ends here began, if one does)."""
        waiting: Threads = []
        match: int | None = None
        seen: set[int] = set()
        for began, first in threads:
            work = [first]
            while work:
                number = work.pop()
                if number in seen:
                    continue
                seen.add(number)
                state = self._states[number]
                if state.guard is not None and not state.guard(before, behind):
                    continue
                if state.leaf is not None:
                    waiting.append((began, number))
                elif state.then:
                    work += state.then
                elif match is None:
                    match = began
        return waiting, match

    def step(self, waiting: Threads, character: str) -> Threads:
        """The threads after one more character."""
        leaves = self._of_character.get(character)
        if leaves is None:
            leaves = self._remember(character)
        states = self._states
        return [(began, states[number].then[0]) for began, number in waiting if states[number].leaf in leaves]

    def _remember(self, character: str) -> frozenset[int]:
        if len(self._of_character) >= MAX_CHARACTERS:
            self._of_character.clear()
        leaves = frozenset(i for i, matcher in enumerate(self._matchers) if matcher.fullmatch(character))
        self._of_character[character] = leaves
        return leaves

    def _add(self, then: tuple[int, ...], *, leaf: str | None = None, guard: Guard | None = None) -> int:
        if len(self._states) >= MAX_STATES:
            raise NotRegularError
        number = None if leaf is None else self._leaves.setdefault(leaf, len(self._leaves))
        self._states.append(_State(then, number, guard))
        return len(self._states) - 1


class _Builder:
    """Adds the states of one pattern, from its end to its beginning. `entry`: its first state."""

    def __init__(self, automaton: PatternAutomaton, pattern: str) -> None:
        self._add = automaton._add
        self._states = automaton._states
        tree = _parsed(pattern)
        try:
            self.entry = self._sequence(tree, _known(tree.state.flags), 0)
        except RecursionError:
            raise NotRegularError from None

    def _sequence(self, items: Any, flags: int, then: int) -> int:
        for kind, value in reversed(list(items)):
            then = self._item(kind, value, flags, then)
        return then

    def _item(self, kind: Any, value: Any, flags: int, then: int) -> int:
        if (leaf := _leaf(kind, value, flags)) is not None:
            return self._add((then,), leaf=leaf)
        if kind is sre.BRANCH:
            return self._add(tuple(self._sequence(option, flags, then) for option in value[1]))
        if kind is sre.SUBPATTERN:
            _, added, removed, content = value
            return self._sequence(content, _known((flags | added) & ~removed), then)
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, content = value
            return self._repeated(low, high, content, flags, then)
        if kind is sre.AT and value in (sre.AT_END, sre.AT_END_STRING):
            return self._end(value, flags, then)
        guard = _around(value, flags) if kind is sre.AT else _beside(kind, value, flags)
        return self._add((then,), guard=guard)

    def _repeated(self, low: int, high: int, content: Any, flags: int, then: int) -> int:
        if max(low, 0 if high is sre.MAXREPEAT else high) > MAX_STATES:
            raise NotRegularError
        if high is sre.MAXREPEAT:
            loop = self._add(())
            self._states[loop].then = (self._sequence(content, flags, loop), then)
            then = loop
        else:
            for _ in range(high - low):
                then = self._add((self._sequence(content, flags, then), then))
        for _ in range(low):
            then = self._sequence(content, flags, then)
        return then

    def _end(self, kind: Any, flags: int, then: int) -> int:
        if kind is sre.AT_END_STRING:
            return self._add((then,), guard=lambda _, behind: behind == "")
        if not flags & re.MULTILINE and self._takes_characters(then):
            raise NotRegularError  # it holds before a last line end, but only while that is the last
        return self._add((then,), guard=lambda _, behind: behind in ("", "\n"))

    def _takes_characters(self, number: int) -> bool:
        seen, work = set[int](), [number]
        while work:
            if (number := work.pop()) not in seen:
                seen.add(number)
                if self._states[number].leaf is not None or not (self._states[number].then or number == 0):
                    return True  # also a loop that is still being built
                work += self._states[number].then
        return False


def _parsed(pattern: str) -> Any:
    if _OTHER_SYNTAX.search(pattern):
        raise NotRegularError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of syntax that means something else to the other library
            return parser.parse(pattern)
    except (re.error, RecursionError, OverflowError, Warning):
        raise NotRegularError from None


def _known(flags: int) -> int:
    if flags & re.ASCII:  # the other library keeps to it here and not there
        raise NotRegularError
    return flags


def _leaf(kind: Any, value: Any, flags: int) -> str | None:
    """The pattern of a single character; None for anything else."""
    if kind is sre.LITERAL:
        text = _escaped(value)
    elif kind is sre.NOT_LITERAL:
        text = f"[^{_escaped(value)}]"
    elif kind is sre.ANY:
        text = "."
    elif kind is sre.IN:
        text = f"[{''.join(map(_member, value))}]"
    else:
        return None
    return f"(?{''.join(letter for flag, letter in _FLAGS.items() if flags & flag)}:{text})"


def _member(item: tuple[Any, Any]) -> str:
    kind, value = item
    if kind is sre.NEGATE:
        return "^"
    if kind is sre.RANGE:
        return f"{_escaped(value[0])}-{_escaped(value[1])}"
    return _escaped(value) if kind is sre.LITERAL else _CLASSES[value]


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"


def _around(kind: Any, flags: int) -> Guard:
    if kind is sre.AT_BEGINNING and flags & re.MULTILINE:
        return lambda before, _: before in ("", "\n")
    if kind in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
        return lambda before, _: before == ""
    word = _compiled(r"\w").fullmatch
    wanted = kind is sre.AT_BOUNDARY

    def at_border(before: str, behind: str | None) -> bool:
        return behind is None or (bool(word(before)) != bool(word(behind))) is wanted

    return at_border


def _beside(kind: Any, value: Any, flags: int) -> Guard:
    """Looking around by one character."""
    if kind not in (sre.ASSERT, sre.ASSERT_NOT) or len(value[1]) != 1:
        raise NotRegularError
    inner, member = value[1][0]
    leaf = _leaf(inner, member, flags)
    if leaf is None:
        raise NotRegularError
    matches, wanted = _compiled(leaf).fullmatch, kind is sre.ASSERT
    if value[0] < 0:
        return lambda before, _: bool(matches(before)) is wanted
    return lambda _, behind: behind is None or bool(matches(behind)) is wanted


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    import regex

    return regex.compile(pattern)


@lru_cache(maxsize=256)
def automaton(patterns: tuple[str, ...]) -> PatternAutomaton | None:
    """For patterns that compile; None where they need backtracking, or too many states."""
    try:
        return PatternAutomaton(patterns)
    except NotRegularError:
        return None


class PatternSearch:
    """One search of an automaton through growing bytes; bytes that are not UTF-8 appear to it as lone surrogates. Mutable."""

    def __init__(self, patterns: PatternAutomaton) -> None:
        self._patterns = patterns
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._taken = 0  # bytes given to the decoder
        self._at = 0  # bytes of whole characters
        self._before = ""
        self._threads: Threads = []
        self._waiting: Threads = []  # the threads closed, as far as that is known without the next character
        self._begin_anew()

    def find(self, data: bytearray) -> tuple[int, int] | None:
        """(end, start) in bytes of the match in `data`, which has grown, that ends first; of several that begins first."""
        patterns = self._patterns
        for character in self._new(data):
            if patterns.guarded:
                self._waiting, began = patterns.close(self._threads, self._before, character)
                if began is not None:
                    return self._at, began
            self._threads = patterns.step(self._waiting, character)
            self._pass(character)
            self._threads.append((self._at, patterns.start))
            self._waiting, began = patterns.close(self._threads, character, "")
            if began is not None:
                return self._at, began
        return None

    def held_from(self) -> int:
        """Where the longest suffix begins that may become a match; the length of the whole characters if none."""
        if not self._patterns.guarded:
            return self._waiting[0][0]
        waiting, began = self._patterns.close(self._threads, self._before, None)
        return min([at for at, _ in waiting[:1]] + ([] if began is None else [began]), default=self._at)

    def skip(self, data: bytearray) -> None:
        """Take note of bytes that must not take part in a match."""
        for character in self._new(data):
            self._pass(character)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._threads = [(self._at, self._patterns.start)]
        self._waiting, _ = self._patterns.close(self._threads, self._before, None)

    def _pass(self, character: str) -> None:
        self._at += 1 if character < "\x80" else len(character.encode("utf-8", "surrogateescape"))
        self._before = character

    def _new(self, data: bytearray) -> Iterator[str]:
        text = self._decoder.decode(bytes(data[self._taken :]))
        self._taken = len(data)
        return iter(text)
