"""Length bounds on strings that a pattern or format describes."""

from __future__ import annotations

from .automaton import Automaton, State, next_set
from .charset import CharSet
from .grammar import EMPTY, Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text, alt, repeat, seq
from .json_text import written
from .normalise import refused

MAX_PLACES = 400  # of a pattern's automaton times the length; each costs a few milliseconds of mask compilation


def bounded(content: Expr, low: int, high: int | None, path: str) -> Expr:
    """`content` where every match has `low` to `high` characters, or one class repeated.

    Raises:
        ConstraintError: the bounds would have to be counted across several parts.
    """
    if spans_within(content, low, high):
        return content
    if isinstance(content, Repeat) and repeats_one_character(content):
        top = content.high if high is None else high if content.high is None else min(content.high, high)
        return repeat(content.item, max(low, content.low), top)
    keyword = "maxLength" if _span(content)[0] >= low else "minLength"
    raise refused(path, keyword, "cannot be combined with what else is said of this string", "bound it in the pattern")


def repeats_one_character(content: Expr) -> bool:
    """Whether `bounded` can count it: a repeat of single characters."""
    return isinstance(content, Repeat) and _span(content.item) == (1, 1)


def counted(values: Expr, low: int, high: int | None, path: str, rules: dict[str, Expr], name: str) -> Expr:
    """The strings, as written in JSON, whose values match `values` and have `low` to `high` characters.

    The product of the pattern's automaton with a counter, as rules `name ...`, one per state and count. Source: the product
    construction for regular languages.

    Raises:
        ConstraintError: it has too many places.
    """
    automaton = Automaton(Grammar(values, {}))
    most = low if high is None else high  # beyond `low` without an upper bound, counts are all the same
    numbers = {(automaton.start, 0): 0}
    work = [(automaton.start, 0)]
    while work:
        state, count = work.pop()
        options: list[Expr] = [EMPTY] if state.accepting and count >= low else []
        if high is None or count < high:
            for members, following in _branches(automaton, state):
                place = (following, min(count + 1, most))
                if place not in numbers:
                    numbers[place] = len(numbers)
                    work.append(place)
                options.append(seq(written(members), Ref(f"{name} {numbers[place]}")))
        rules[f"{name} {numbers[state, count]}"] = alt(*options)
        if len(numbers) > MAX_PLACES:
            raise refused(
                path, "pattern", f"and its length bounds have more than {MAX_PLACES} places", "bound it in the pattern"
            )
    return Ref(f"{name} 0")


def _branches(automaton: Automaton, state: State) -> list[tuple[CharSet, State]]:
    """The characters that may follow, grouped by where they lead."""
    groups: list[CharSet] = []
    for top in state.tops:
        members = next_set(top)
        groups = [part for group in groups for part in (group & members, group - members) if part]
        rest = members
        for group in groups:
            rest -= group
        groups += [rest] if rest else []
    branches = ((group, automaton.step(state, group.character(0))) for group in groups)
    return [(group, following) for group, following in branches if following is not None]


def spans_within(content: Expr, low: int, high: int | None) -> bool:
    """Whether the bounds say nothing that `content` does not say already."""
    shortest, longest = _span(content)
    return shortest >= low and (high is None or (longest is not None and longest <= high))


def _span(expr: Expr) -> tuple[int, int | None]:
    """Fewest and most characters of the string's value; None for no limit. An escape sequence is one character."""
    match expr:
        case Chars():
            return 1, 1
        case Text(text):
            return (1, 1) if text.startswith("\\") and len(text) > 1 else (len(text), len(text))
        case Alt(options):
            spans = [_span(option) for option in options]
            highs = [high for _, high in spans if high is not None]
            return min((low for low, _ in spans), default=0), max(highs, default=0) if len(highs) == len(
                spans
            ) else None
        case Seq(parts):
            spans = [_span(part) for part in parts]
            highs = [high for _, high in spans if high is not None]
            return sum(low for low, _ in spans), sum(highs) if len(highs) == len(spans) else None
        case Repeat(item, low, high):
            fewest, most = _span(item)
            return fewest * low, None if high is None or most is None else most * high
        case _:
            return 1, 1
