"""From a constraint spec to its grammar: the door both engines come through."""

from __future__ import annotations

from functools import lru_cache

from ...errors import ConstraintError
from ...ir.specs import ConstraintSpec
from .choices import choices_grammar
from .grammar import Grammar
from .json_schema import schema_grammar
from .limits import check_size
from .regex import regex_grammar


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
