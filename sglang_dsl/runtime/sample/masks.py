"""Which tokens a constraint allows, as bits, applied to logits.

The matcher protocol: one matcher per sequence, living in the worker.

Two families implement it: the pure-Python engine in this folder (for the mock, over bytes of token pieces) and the xgrammar and
llguidance adapters in `runtime/sample` (over token bitmasks, with torch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ...ir.specs import ConstraintSpec


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


class TokenMatcher(Matcher, Protocol):
    """A matcher that can say which tokens may come next."""

    def fill_mask(self, row: Tensor) -> None:
        """Write into row, int32 [ceil(V / 32)]: bit i % 32 of word i // 32 is set if token i is allowed. Stop tokens are allowed
        exactly where the output may end.
        """


class CompiledConstraint(Protocol):
    """A constraint over one vocabulary, shared by all sequences that ask for it."""

    def matcher(self) -> TokenMatcher:
        """A new matcher at the beginning."""


class Compilation(Protocol):
    """A future of a compiled constraint; raises ConstraintError."""

    def result(self) -> CompiledConstraint:
        """Wait for it."""

    def exception(self) -> BaseException | None:
        """Wait for its error."""

    def add_done_callback(self, callback: Callable[[Future[Any]], object]) -> None:
        """Call when it is there."""


class ConstraintCompiler(Protocol):
    """Compiles constraints off the caller's thread; the same one only once."""

    def compile(self, spec: ConstraintSpec) -> Compilation:
        """Begin, or take what was begun for an equal spec."""

    def close(self) -> None:
        """End its threads. Idempotent."""


def empty_masks(rows: int, vocab_size: int) -> Tensor:
    """Bits for `rows` rows, int32 [rows, ceil(V / 32)], all allowed."""
    return torch.full((rows, -(-vocab_size // 32)), -1, dtype=torch.int32)


def apply_masks(logits: Tensor, masks: Tensor, rows: Sequence[int]) -> None:
    """Set what the bits [n, ceil(V / 32)] forbid to -inf in rows [n] of logits [N, V], in place."""
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    forbidden = (masks.to(logits.device).unsqueeze(-1) >> shifts) & 1 == 0
    for row, mask in zip(rows, forbidden.flatten(1)[:, : logits.shape[1]], strict=True):
        logits[row].masked_fill_(mask, -torch.inf)
