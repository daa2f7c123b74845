"""Token healing: the prompt's last token is chosen anew together with the first ones of the output.

    prompt "see http:" + output "//x"     tokens  see| http|:      and the model would have written  see| http|://|x
    healed: prompt "see http", and the output has to begin with ":"

Source: token healing as in Microsoft's guidance (`guidance` project, "token healing").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import SpecError
from ...ir.nodes import Gen
from ...ir.specs import ConstraintSpec
from ..cache.keys import TokenIds
from ..constrain.regex import literal
from ..text.protocol import Tokenizer


@dataclass(frozen=True, slots=True)
class Healed:
    """A call without its prompt's last token. `text`: what the output has to begin with, and is not part of it."""

    prompt_ids: TokenIds
    text: str
    constraint: ConstraintSpec


def check_heal(gen: Gen) -> None:
    """Raise SpecError where a gen's constraint cannot be put behind a healed token."""
    if gen.heal and gen.constraint is not None and gen.constraint.kind not in ("regex", "choices"):
        raise SpecError(
            f"heal=True goes with free text, a regex or choices, not with a constraint of kind {gen.constraint.kind!r}",
            hint="leave heal out: structured output begins with a token of its own anyway",
            origin=gen.origin,
        )


def healed(gen: Gen, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Healed | None:
    """The healed call, or None where there is nothing to heal.

    That is so where the last token is the only one, is a control token or a part of a character, or where a stop could
    match in its text, which the output does not include.
    """
    last = prompt_ids[-1]
    if not gen.heal or len(prompt_ids) < 2 or last in tokenizer.control_ids:
        return None
    try:
        text = tokenizer.token_bytes(last).decode()
    except UnicodeDecodeError:
        return None
    if not text or gen.sampling.stop_regex or any(_touches(text, stop) for stop in gen.sampling.stop):
        return None
    return Healed(TokenIds(prompt_ids[:-1]), text, _behind(text, gen.constraint))


def _behind(text: str, constraint: ConstraintSpec | None) -> ConstraintSpec:
    start = literal(text)
    if constraint is None:
        return ConstraintSpec(kind="regex", text=start + r"[\s\S]*")
    if constraint.kind == "regex":
        return replace(constraint, text=f"{start}(?:{constraint.text})")
    return ConstraintSpec.choices(tuple(text + choice for choice in json.loads(constraint.text)))


def _touches(text: str, stop: str) -> bool:
    """Whether a match of `stop` could begin in `text`."""
    return stop in text or any(text.endswith(stop[:length]) for length in range(1, len(stop)))
