"""The matcher protocol: one matcher per sequence, living in the worker.

Two families implement it: the pure-Python engine in this folder (for the mock, over bytes of token pieces) and the xgrammar and
llguidance adapters in `runtime/sample` (over token bitmasks, with torch).
"""

from __future__ import annotations

from typing import Protocol, Self


class Matcher(Protocol):
    """Where one sequence stands in its constraint."""

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here."""

    def fork(self) -> Self:
        """An independent copy at the same place."""

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""
