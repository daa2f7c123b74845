"""Choices: exactly one of some strings."""

from __future__ import annotations

from ...errors import ConstraintError
from .grammar import Expr, Grammar, one_of
from .limits import LIMITS, load_json


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
