"""Length bounds on strings that a pattern or format describes."""

from __future__ import annotations

from .grammar import Alt, Chars, Expr, Repeat, Seq, Text, repeat
from .normalise import refused


def bounded(content: Expr, low: int, high: int | None, path: str) -> Expr:
    """`content` where every match has `low` to `high` characters.

    Raises:
        ConstraintError: the bounds would have to be counted across several parts of the pattern.
    """
    shortest, longest = _span(content)
    if shortest >= low and (high is None or (longest is not None and longest <= high)):
        return content
    if isinstance(content, Repeat) and _span(content.item) == (1, 1):
        top = content.high if high is None else high if content.high is None else min(content.high, high)
        return repeat(content.item, max(low, content.low), top)
    raise refused(
        path,
        "maxLength" if shortest >= low else "minLength",
        "cannot be combined with this pattern",
        "bound it in the pattern",
    )


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
            return min(low for low, _ in spans), max(highs) if len(highs) == len(spans) else None
        case Seq(parts):
            spans = [_span(part) for part in parts]
            highs = [high for _, high in spans if high is not None]
            return sum(low for low, _ in spans), sum(highs) if len(highs) == len(spans) else None
        case Repeat(item, low, high):
            fewest, most = _span(item)
            return fewest * low, None if high is None or most is None else most * high
        case _:
            return 1, 1
