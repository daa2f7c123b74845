"""Random texts that satisfy a constraint: what a mock answers where nothing is scripted."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from .automaton import Automaton, Stack, State, next_set
from .charset import WHITESPACE, CharSet
from .grammar import Chars

_USUAL = CharSet.of_ranges([(ord("a"), ord("z"))])
_COMMON = CharSet.of_ranges([(0x20, 0x7E)])
_CLASS_WEIGHT = 6  # of a character class against a fixed text: strings get some length


def completion(automaton: Automaton, text: str, rng: Random, free_characters: int) -> str:
    """A random text such that `text` + it satisfies the constraint; "" if `text` does already and must end.

    After about `free_characters` choices the shortest way to the end is taken.

    Raises:
        ValueError: nothing that begins with `text` satisfies the constraint.
    """
    state: State | None = automaton.start
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


def _ends(state: State, rng: Random, *, hurry: bool) -> bool:
    return state.accepting and (hurry or not state.tops or rng.random() < 1 / (1 + _CLASS_WEIGHT))


def _chosen(state: State, rng: Random, *, hurry: bool) -> Stack:
    """A way to go on; white space only where there is no other."""
    tops = [top for top in state.tops if next_set(top) != WHITESPACE] or list(state.tops)
    if hurry:
        return min(tops, key=lambda top: top.shortest)
    return rng.choices(tops, [_CLASS_WEIGHT if isinstance(top.expr, Chars) else 1 for top in tops])[0]


def _character(top: Stack, rng: Random) -> str:
    members = _legible(next_set(top))
    return members.character(rng.randrange(len(members)))


@lru_cache(maxsize=256)
def _legible(members: CharSet) -> CharSet:
    """The most legible part of a set."""
    return members & _USUAL or members & _COMMON or members
