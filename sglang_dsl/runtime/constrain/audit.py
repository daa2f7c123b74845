"""What is known about a constraint before a run: what it narrows, and the text it forces on every path."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...ir.execution import ConstraintReport
from ...ir.specs import ConstraintSpec
from .findings import Finding
from .grammar import Alt, Expr, Grammar, Ref, Repeat, Seq, Text
from .json_schema import schema_grammar
from .limits import check_size
from .parse import parse_constraint

_PASSES = 4  # over the rules, in both directions


def audit(spec: ConstraintSpec, count_tokens: Callable[[str], int] | None = None) -> ConstraintReport:
    """Findings and forced tokens of a constraint (0 without `count_tokens`).

    Raises:
        ConstraintError: the constraint cannot be used at all.
    """
    forced = mandatory_texts(parse_constraint(spec)) if count_tokens else ()
    tokens = sum(map(count_tokens, forced)) if count_tokens else 0
    return ConstraintReport(forced_tokens=tokens, findings=tuple(map(str, findings(spec))))


def findings(spec: ConstraintSpec) -> tuple[Finding, ...]:
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
        case Text(text):
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
