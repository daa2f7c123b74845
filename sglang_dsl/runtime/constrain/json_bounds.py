"""Numeric bounds of a schema."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any


def bound(schema: dict[str, Any], keyword: str) -> Decimal | None:
    """A number keyword, exactly as written; None where it is not given."""
    value = schema.get(keyword)
    return None if value is None else Decimal(str(value))


def tighter(
    inclusive: Decimal | None, exclusive: Decimal | None, pick: Callable[[Decimal, Decimal], Decimal]
) -> tuple[Decimal | None, bool]:
    """The bound that counts, and whether it is exclusive."""
    if inclusive is None or exclusive is None:
        return (exclusive, True) if exclusive is not None else (inclusive, False)
    return pick(inclusive, exclusive), pick(inclusive, exclusive) == exclusive


def first_whole(low: Decimal | None, *, above: bool) -> int | None:
    """The least whole number above an (exclusive) lower bound."""
    if low is None:
        return None
    whole = int(low.to_integral_value(rounding="ROUND_CEILING"))
    return whole + 1 if above and whole == low else whole


def last_whole(high: Decimal | None, *, below: bool) -> int | None:
    """The greatest whole number below an (exclusive) upper bound."""
    if high is None:
        return None
    whole = int(high.to_integral_value(rounding="ROUND_FLOOR"))
    return whole - 1 if below and whole == high else whole
