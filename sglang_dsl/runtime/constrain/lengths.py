"""How short a text an expression can match, and what follows from it: dead parts, emptiness, left recursion."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...errors import ConstraintError
from .grammar import NOTHING, Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text, alt, repeat, seq


def shortest(expr: Expr, rules: Mapping[str, float]) -> float:
    """Characters of the shortest match, given those of the rules; infinity if there is none."""
    match expr:
        case Text(text):
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
