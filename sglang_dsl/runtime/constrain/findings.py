"""What an audit says about a constraint: which keywords are narrowed, and which cannot be enforced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One keyword that the grammar does not say exactly.

    path: JSON pointer of the schema that holds it. severity `narrows`: every output is still valid, some valid values are never
    written. `weakens`: outputs may break the keyword (refused unless weakening was asked for).
    """

    path: str
    keyword: str
    severity: Literal["narrows", "weakens"]
    detail: str

    def __str__(self) -> str:
        return f"{self.keyword!r} at {self.path or '#'} {self.detail}"
