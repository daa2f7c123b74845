"""From a constraint spec to its grammar, and from the grammar to a matcher over characters.

`parse_constraint` is the door that both engines come through: the pure-Python matcher of this file, which the mock and the final
check of answers use, and the token masks of `runtime/sample`. `compile_constraint` gives the matcher. `audit` says what is known
about a constraint before a run: what it narrows, and the text that it forces on every path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Self

from ...errors import ConstraintError
from ...ir.execution import ConstraintReport
from ...ir.specs import ConstraintSpec
from .automaton import Automaton, AutomatonState, completion, next_set
from .grammar import (
    LIMITS,
    Alt,
    Expr,
    Grammar,
    LiteralText,
    Ref,
    Repeat,
    SchemaWeakness,
    Seq,
    check_size,
    load_json,
    one_of,
)
from .json_schema import schema_grammar
from .regex import regex_grammar

MAX_FORCED = 4096  # characters; a longer forced text is given in parts
_REPLACEMENT_LENGTHS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))  # lead byte ranges of UTF-8 (RFC 3629)
# Where a lead byte narrows the second byte: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629 section 4).
_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


class PythonMatcher:
    """Implements `Matcher`. Owned by one sequence; forks are independent and cost nothing.

    A token may end inside a UTF-8 character if some character that goes on like this is allowed.
    """

    __slots__ = ("_automaton", "_pending", "_state", "_token_bytes")

    def __init__(self, automaton: Automaton, token_bytes: Callable[[int], bytes]) -> None:
        self._automaton = automaton
        self._token_bytes = token_bytes
        self._state = automaton.start
        self._pending = b""

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here, or if it stands for no bytes."""
        return self.accept_bytes(self._token_bytes(token_id))

    def accept_bytes(self, piece: bytes) -> bool:
        """Step over a token's bytes. False (state unchanged) if they are not allowed here, or if there are none."""
        after = self._after(piece) if piece else None
        if after is None:
            return False
        self._state, self._pending = after
        return True

    def accept_text(self, text: str) -> bool:
        """Step over whole characters. False (state unchanged) if they are not allowed here."""
        if self._pending:
            return not text
        state = self._walk(text)
        if state is None:
            return False
        self._state = state
        return True

    def allows(self, piece: bytes) -> bool:
        """Whether `accept_bytes(piece)` would succeed."""
        return bool(piece) and self._after(piece) is not None

    def fork(self) -> Self:
        """An independent copy at the same place."""
        copy = type(self)(self._automaton, self._token_bytes)
        copy._state, copy._pending = self._state, self._pending
        return copy

    @property
    def place(self) -> tuple[AutomatonState, bytes]:
        """Where it stands: the automaton's state, and the bytes of a character that has begun."""
        return self._state, self._pending

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""
        return self._state.accepting and not self._pending

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._state.accepting and not self._state.tops and not self._pending

    def forced_text(self) -> str:
        """The text that has to follow, up to the next place where there is a choice; "" inside a character."""
        forced: list[str] = []
        state: AutomatonState | None = self._state
        while state and not self._pending and not state.accepting and len(forced) < MAX_FORCED:
            character = _only_character(state)
            if character is None:
                break
            forced.append(character)
            state = self._automaton.step(state, character)
        return "".join(forced)

    def _walk(self, text: str) -> AutomatonState | None:
        state: AutomatonState | None = self._state
        for character in text:
            if state is None:
                return None
            state = self._automaton.step(state, character)
        return state

    def _after(self, piece: bytes) -> tuple[AutomatonState, bytes] | None:
        data = self._pending + piece
        whole = len(data) - _open_bytes(data)
        try:
            state = self._walk(data[:whole].decode())
        except UnicodeDecodeError:
            return None
        tail = data[whole:]
        if state is None or (tail and not _completable(state, tail)):
            return None
        return state, tail


def _only_character(state: AutomatonState) -> str | None:
    """The one character that may come next, if there is just one."""
    sets = [next_set(top) for top in state.tops]
    if any(len(s) > 1 for s in sets):
        return None
    characters = {s.character(0) for s in sets}
    return characters.pop() if len(characters) == 1 else None


def _open_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character without ending it."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        return next((back for low, high, length in _REPLACEMENT_LENGTHS if low <= byte <= high and back < length), 0)
    return 0


def _completable(state: AutomatonState, tail: bytes) -> bool:
    """Whether some allowed character begins with these bytes."""
    length = next(length for low, high, length in _REPLACEMENT_LENGTHS if low <= tail[0] <= high)
    second_low, second_high = _SECOND_BYTE.get(tail[0], (0x80, 0xBF))
    if len(tail) > 1 and not second_low <= tail[1] <= second_high:
        return False
    low = tail if len(tail) > 1 else tail + bytes([second_low])
    high = tail if len(tail) > 1 else tail + bytes([second_high])
    first = ord((low + b"\x80" * (length - len(low))).decode())
    last = ord((high + b"\xbf" * (length - len(high))).decode())
    return any(next_set(top).touches(first, last) for top in state.tops)


def choices_grammar(source: str) -> Grammar:
    """From the canonical text of a `choices` constraint.

    Raises:
        ConstraintError: not a non-empty JSON list of strings, or too many.
    """
    choices = load_json(source, "the list of choices")
    if not isinstance(choices, list) or not all(isinstance(c, str) for c in choices):
        raise ConstraintError("choices is not a list of strings", hint='give choices as ["yes", "no"]')
    if not choices:
        raise ConstraintError("the list of choices is empty", hint="give at least one choice")
    if len(choices) > LIMITS.enum_values:
        raise ConstraintError(
            f"{len(choices)} choices are more than {LIMITS.enum_values}", hint="use `select`, which scores choices"
        )
    rules: dict[str, Expr] = {}
    return Grammar(one_of(choices, rules, "choice"), rules)


@lru_cache(maxsize=256)
def parse_constraint(spec: ConstraintSpec) -> Grammar:
    """The grammar of exactly the texts the spec allows, or of a stated part of them (see `audit`).

    Raises:
        ConstraintError: malformed, unsupported, matching nothing, or too large; with the position or JSON path.
    """
    check_size(spec.text)
    match spec.kind:
        case "choices":
            return choices_grammar(spec.text)
        case "regex":
            return regex_grammar(spec.text)
        case "json_schema":
            return schema_grammar(spec.text, spec.max_whitespace).grammar
        case _:
            raise ConstraintError(
                f"constraints of kind {spec.kind!r} are not supported yet", hint="use a JSON schema, a regex or choices"
            )


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


_PASSES = 4  # over the rules, in both directions


def audit(spec: ConstraintSpec, count_tokens: Callable[[str], int] | None = None) -> ConstraintReport:
    """Findings and forced tokens of a constraint (0 without `count_tokens`).

    Raises:
        ConstraintError: the constraint cannot be used at all.
    """
    forced = mandatory_texts(parse_constraint(spec)) if count_tokens else ()
    tokens = sum(map(count_tokens, forced)) if count_tokens else 0
    return ConstraintReport(forced_tokens=tokens, findings=tuple(map(str, findings(spec))))


def findings(spec: ConstraintSpec) -> tuple[SchemaWeakness, ...]:
    """What the constraint's grammar does not say exactly. Keywords that cannot be enforced are listed, not refused.

    Raises:
        ConstraintError: malformed, matching nothing, too large, or unsupported in a way that cannot be left out.
    """
    if spec.kind != "json_schema":
        parse_constraint(spec)
        return ()
    check_size(spec.text)
    return schema_grammar(spec.text, spec.max_whitespace, strict=False).findings


def mandatory_texts(grammar: Grammar) -> tuple[str, ...]:
    """Texts that stand in every output, in order; where there are alternatives, those of the one with the fewest characters.

    A lower bound: recursion is followed a few times only.
    """
    forced: dict[str, tuple[str, ...]] = dict.fromkeys(grammar.rules, ())
    order = list(grammar.rules)
    for _ in range(_PASSES):
        for name in order:
            forced[name] = _mandatory(grammar.rules[name], forced)
        order.reverse()
    return _mandatory(grammar.root, forced)


def _mandatory(expr: Expr, rules: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    match expr:
        case LiteralText(text):
            return (text,)
        case Seq(parts):
            return tuple(text for part in parts for text in _mandatory(part, rules))
        case Alt(options):
            return min((_mandatory(option, rules) for option in options), key=lambda texts: sum(map(len, texts)))
        case Repeat(item, low, _):
            return _mandatory(item, rules) if low else ()
        case Ref(name):
            return rules[name]
        case _:
            return ()
