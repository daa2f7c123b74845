"""xgrammar as the token-mask engine: constraints compiled once per spec in worker threads, one matcher per sequence.

What a constraint means is decided in `runtime/constrain` (one grammar for both engines); this file turns it into bitmasks
over one model's vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Self

import torch
import xgrammar
from torch import Tensor

from ...errors import ConstraintError
from ...ir.specs import ConstraintSpec
from ..constrain.ebnf import to_ebnf
from ..constrain.parse import parse_constraint
from ..text.protocol import Tokenizer

MAX_GRAMMARS = 256  # compiled grammars kept per model, least recently used first out; a typical one holds 0.1-7 MB
MAX_CACHE_BYTES = 256 * 1024 * 1024  # of xgrammar's own cache of rules, which schemas that resemble each other share
_COMPILE_THREADS = 2


class GrammarMatcher:
    """Where one sequence stands in its constraint, over token ids.

    Stop tokens are never accepted here (the end of a sequence is the sampler's); `fill_mask` allows them exactly where
    `may_end`. Owned by one sequence; not thread-safe.
    """

    __slots__ = ("_ends", "_matcher")

    def __init__(self, matcher: xgrammar.GrammarMatcher, ends: Tensor) -> None:
        self._matcher = matcher
        self._ends = ends

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here, or if it is a stop token."""
        if token_id < 0 or token_id in self._matcher.stop_token_ids:
            return False
        return bool(self._matcher.accept_token(token_id))

    def fork(self) -> Self:
        """An independent copy at the same place."""
        return type(self)(self._matcher.fork(), self._ends)

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` accepted tokens.

        Raises:
            ValueError: fewer were accepted.
        """
        try:
            self._matcher.rollback(tokens)
        except RuntimeError as error:
            raise ValueError(f"cannot undo {tokens} tokens: fewer were accepted") from error

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""
        return bool(self._matcher.is_completed())

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""
        if not self.may_end:
            return False
        row = torch.empty_like(self._ends)
        self.fill_mask(row)
        return torch.equal(row, self._ends)

    def fill_mask(self, row: Tensor) -> None:
        """Write into row int32 [ceil(V / 32)] (contiguous, CPU): bit i % 32 of word i // 32 = token i is allowed. A row of zeros
        means that no token continues the text, though the grammar could: the vocabulary lacks the bytes.
        """
        if row.device.type != "cpu" or not row.is_contiguous():
            raise ValueError("a mask row has to be contiguous and on the CPU")
        self._matcher.fill_next_token_bitmask(row.unsqueeze(0), 0)


class CompiledGrammar:
    """A constraint compiled for one vocabulary. Shared between sequences and threads."""

    __slots__ = ("_compiled", "_ends", "memory_bytes")

    def __init__(self, compiled: xgrammar.CompiledGrammar, ends: Tensor) -> None:
        self._compiled = compiled
        self._ends = ends
        self.memory_bytes = int(compiled.memory_size_bytes)

    def matcher(self) -> GrammarMatcher:
        """A new matcher at the start."""
        return GrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._ends)


class GrammarPool:
    """Compiles constraints for one tokenizer, off the caller's thread, each once; bounded by number and bytes.

    vocab_size: V of the logits (may exceed the tokenizer's; the rest is never allowed). Control tokens are never allowed inside
    text; every stop id of the model ends it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._ends = _mask_of(tokenizer.stop_ids, vocab_size)
        self._compiler = xgrammar.GrammarCompiler(
            _token_table(tokenizer, vocab_size), max_threads=1, cache_limit_bytes=MAX_CACHE_BYTES
        )
        self._threads = ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="grammar")
        self._futures: OrderedDict[ConstraintSpec, Future[CompiledGrammar]] = OrderedDict()
        self._lock = Lock()

    def compile(self, spec: ConstraintSpec) -> Future[CompiledGrammar]:
        """The compiled constraint; the same future for equal specs. It raises ConstraintError: malformed, unsupported, empty,
        too large. Cancelling it does nothing to others who wait: they hold the same one, so do not.
        """
        with self._lock:
            future = self._futures.get(spec)
            if future is None:
                future = self._threads.submit(self._compile, spec)
                self._futures[spec] = future
                self._evict()
            self._futures.move_to_end(spec)
            return future

    def close(self) -> None:
        """End the threads. A compilation that has begun is finished first; those that have not are cancelled."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _compile(self, spec: ConstraintSpec) -> CompiledGrammar:
        grammar = parse_constraint(spec)
        try:
            compiled = self._compiler.compile_grammar(to_ebnf(grammar))
        except RuntimeError as error:
            raise ConstraintError(
                "the constraint could not be compiled into token masks", hint="simplify it; smaller bounds help most"
            ) from error
        return CompiledGrammar(compiled, self._ends)

    def _evict(self) -> None:
        """Forget the least recently used grammars that are done, down to the limit."""
        for spec in [s for s, f in self._futures.items() if f.done()]:
            if len(self._futures) <= MAX_GRAMMARS:
                return
            del self._futures[spec]


def _token_table(tokenizer: Tokenizer, vocab_size: int) -> xgrammar.TokenizerInfo:
    """Every token's bytes; an empty entry is never allowed in text (control tokens, ids beyond the tokenizer's)."""
    known = min(tokenizer.vocab_size, vocab_size)
    blank = tokenizer.control_ids | tokenizer.stop_ids
    table = [b"" if i in blank else tokenizer.token_bytes(i) for i in range(known)]
    return xgrammar.TokenizerInfo(
        table + [b""] * (vocab_size - known),
        xgrammar.VocabType.RAW,
        vocab_size=vocab_size,
        stop_token_ids=sorted(tokenizer.stop_ids),
    )


def _mask_of(ids: frozenset[int], vocab_size: int) -> Tensor:
    """int32 [ceil(V / 32)] with exactly these tokens allowed."""
    bits = torch.zeros(-(-vocab_size // 32), 32, dtype=torch.int64)
    for token_id in ids:
        bits[token_id // 32, token_id % 32] = 1
    words = (bits << torch.arange(32)).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
