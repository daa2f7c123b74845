"""xgrammar as the token-mask engine: constraints compiled once per spec in worker threads, one matcher per sequence.

What a constraint means is decided in `runtime/constrain` (one grammar for both engines); this file turns it into
bitmasks over one model's vocabulary.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Self

import torch
import xgrammar

from ...errors import ConstraintError, SamplingError
from ...ir.specs import ConstraintSpec
from ..constrain.ebnf import to_ebnf
from ..constrain.parse import parse_constraint
from ..text.protocol import Tokenizer

_CACHE_ENTRIES = 256  # compiled grammars kept per model; a typical one holds 0.1-7 MB
_MASK_ALL = -1  # an int32 word with every bit set


class TokenMatcher:
    """Where one sequence stands in its constraint, over token ids. Implements the `Matcher` protocol.

    Stop tokens are never accepted here: the end of a sequence is the sampler's, and `fill_mask` allows the stop tokens
    exactly where `may_end`. Owned by one sequence; not thread-safe.
    """

    __slots__ = ("_matcher",)

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here, or it is a stop token."""
        if token_id < 0 or token_id in self._matcher.stop_token_ids:
            return False
        return bool(self._matcher.accept_token(token_id))

    def fork(self) -> Self:
        """An independent copy at the same place."""
        return type(self)(self._matcher.fork())

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens.

        Raises:
            ValueError: if fewer were accepted.
        """
        try:
            self._matcher.rollback(num_tokens)
        except RuntimeError as error:
            raise ValueError(f"cannot undo {num_tokens} tokens: fewer were accepted") from error

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""
        return bool(self._matcher.is_completed())

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""
        if not self.may_end:
            return False
        mask = allocate_mask(1, self._vocab_size)
        self.fill_mask(mask, 0)
        return _allowed_ids(mask[0], self._vocab_size) <= set(self._matcher.stop_token_ids)

    def fill_mask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write which tokens may come next into `bitmask[row]` (int32 words, bit i of word w is token 32w+i)."""
        self._matcher.fill_next_token_bitmask(bitmask, row)
