"""Compiling a constraint for the pure-Python engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

from ...ir.specs import ConstraintSpec
from .automaton import Automaton
from .matcher import PythonMatcher
from .parse import parse_constraint
from .samples import completion

MAX_COMPILED = 256  # constraints kept, least recently used first out
SAMPLE_CHARACTERS = 200  # of a sampled text before it takes the shortest way to its end


class CompiledConstraint:
    """A constraint ready to be matched. Immutable; shared between sequences and threads."""

    __slots__ = ("automaton", "spec")

    def __init__(self, spec: ConstraintSpec) -> None:
        self.spec = spec
        self.automaton = Automaton(parse_constraint(spec))

    def matcher(self, token_bytes: Callable[[int], bytes] = lambda _: b"") -> PythonMatcher:
        """A new matcher at the start. `token_bytes`: the bytes of a token id; b"" (control tokens) is never accepted."""
        return PythonMatcher(self.automaton, token_bytes)

    def matches(self, text: str) -> bool:
        """Whether the whole text satisfies the constraint."""
        matcher = self.matcher()
        return matcher.accept_text(text) and matcher.may_end

    def known(self, text: str) -> bool | None:
        """`matches`, where others have walked this way before, so that it takes a look-up per character; else None."""
        state = self.automaton.start
        for character in text:
            try:
                following = state.steps[character]  # one look: another thread may empty the memory at any time
            except KeyError:
                return None
            if following is None:
                return False
            state = following
        return state.accepting

    def sample_text(self, rng: Random, *, characters: int = SAMPLE_CHARACTERS) -> str:
        """A random text that satisfies the constraint, of about `characters` at most unless it has to be longer."""
        return self.complete("", rng, characters=characters)

    def complete(self, text: str, rng: Random, *, characters: int = SAMPLE_CHARACTERS) -> str:
        """A random continuation of `text` with which it satisfies the constraint.

        Raises:
            ValueError: there is none.
        """
        return completion(self.automaton, text, rng, characters)


@lru_cache(maxsize=MAX_COMPILED)
def compile_constraint(spec: ConstraintSpec) -> CompiledConstraint:
    """The constraint, compiled once per spec. Thread-safe.

    Raises:
        ConstraintError: malformed, unsupported, matching nothing, or too large; with the position or JSON path.
    """
    return CompiledConstraint(spec)
