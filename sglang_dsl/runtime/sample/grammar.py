"""xgrammar as the token-mask engine: constraints compiled once per spec in worker threads, one matcher per sequence.

What a constraint means is decided in `runtime/constrain` (one grammar for both engines); this file turns it into bitmasks
over one model's vocabulary, and cuts masks where a JSON string is about to be full (`constrain/gbnf.py` says why).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import RLock, Timer
from typing import NamedTuple, Self

import numpy as np
import torch
import xgrammar
from torch import Tensor

from ...errors import ConstraintError
from ...ir.specs import ConstraintSpec
from ..constrain.automaton import Automaton
from ..constrain.compile import PythonMatcher, compile_constraint, parse_constraint
from ..constrain.gbnf import only_a_quote_fits, relaxed, string_place, to_ebnf
from ..text.tokenizer import Tokenizer

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_GOES_ON = frozenset(
    bytes([b]) for b in b'"\\/bfnrtu0123456789abcdefABCDEF'
)  # first bytes of what follows an open escape
_TAIL_BYTES = 12  # the longest escape: two surrogates
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..\\", re.DOTALL)
_OPEN_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?$")


class TokenTable:
    """The bytes of every token, and how far each reaches inside a JSON string. Shared by all constraints of a model.

    reach: characters from which on a string cannot be opened and filled by one token.
    """

    def __init__(self, table: Sequence[bytes]) -> None:
        self.table = table
        self.reach = max((len(piece) - piece.index(_QUOTE) for piece in table if _QUOTE in piece), default=0) + 1
        self.opening_quote = self._mask(torch.tensor([piece.startswith(b'"') for piece in table]))
        self._counts = {b"": self._count(b""), b"\\": self._count(b"\\")}  # others are rare: counted when first met
        self._within: dict[tuple[bytes, int], Tensor] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; b"" for a control token or an id outside the table."""
        return self.table[token_id] if 0 <= token_id < len(self.table) else b""

    def within(self, characters: int, escape: bytes = b"") -> Tensor:
        """int32 [ceil(V / 32)]: tokens that begin at most this many characters of a string, after an `escape` that is open."""
        if escape not in self._counts:
            self._counts[escape] = self._count(escape)
        longest = int(self._counts[escape].max())
        key = (escape, min(characters, longest))
        if key not in self._within:
            self._within[key] = self._mask(self._counts[escape] <= characters)
        return self._within[key]

    def mask_of(self, token_ids: Iterable[int]) -> Tensor:
        """int32 [ceil(V / 32)] with exactly these tokens allowed."""
        chosen = torch.zeros(len(self.table), dtype=torch.bool)
        chosen[list(token_ids)] = True
        return self._mask(chosen)

    def _count(self, escape: bytes) -> Tensor:
        """Per token, the characters of a string it begins after `escape`, up to its first quote."""
        if not escape:
            return torch.tensor([_characters(piece) for piece in self.table], dtype=torch.int32)
        counts, before = torch.zeros(len(self.table), dtype=torch.int32), _characters(escape)
        for i, piece in enumerate(self.table):
            if piece[:1] in _GOES_ON:  # the grammar forbids all others
                counts[i] = _characters(escape + piece) - before
        return counts

    def _mask(self, chosen: Tensor) -> Tensor:
        bits = torch.zeros(-(-len(self.table) // 32) * 32, dtype=torch.bool)
        bits[: len(chosen)] = chosen
        return torch.from_numpy(np.packbits(bits.numpy(), bitorder="little").view(np.int32))


class BoundedPosition(NamedTuple):
    """Where a text stands with all its bounds: the exact matcher, the last bytes, and the trail before the last token."""

    exact: PythonMatcher
    tail: bytes
    before: BoundedPosition | None


class LengthBounds:
    """The bounds of one constraint that its token-mask grammar leaves out. Shared by all its matchers."""

    def __init__(self, automaton: Automaton, tokens: TokenTable) -> None:
        self._automaton = automaton
        self._tokens = tokens

    def start(self) -> BoundedPosition:
        """The trail of the empty text."""
        return BoundedPosition(PythonMatcher(self._automaton, self._tokens.token_bytes), b"", None)

    def step(self, trail: BoundedPosition, token_id: int) -> BoundedPosition | None:
        """The trail after one more token; None if the bounds do not allow it."""
        exact = trail.exact.fork()
        if not exact.accept(token_id):
            return None
        return BoundedPosition(exact, (trail.tail + self._tokens.token_bytes(token_id))[-_TAIL_BYTES:], trail)

    def cut(self, row: Tensor, trail: BoundedPosition) -> None:
        """Take from a mask row what the bounds forbid at the end of the trail. Stop tokens are left as they are."""
        state, begun = trail.exact.place
        place = string_place(state)
        if place is None:
            if only_a_quote_fits(state):
                row &= self._tokens.opening_quote
        elif place.left is not None:
            escape = _open_escape(trail.tail) if place.in_escape else b""
            row &= self._tokens.within(place.left - bool(begun), escape)


def _open_escape(tail: bytes) -> bytes:
    """The escape a text ends inside of, with hex digits that decide nothing written as 0, so that few kinds remain."""
    found = _OPEN_ESCAPE.search(tail)
    escape = found.group().lower() if found else b""
    kept = 4 if escape.startswith(b"\\ud") else 2  # `\ud8` to `\udb` announce a second half
    return escape[:kept] + re.sub(rb"[0-9a-f]", b"0", escape[kept:])


def _characters(piece: bytes) -> int:
    """Characters of a JSON string that the bytes begin, up to the first quote. Bytes that continue a character count 0."""
    count, at = 0, 0
    while at < len(piece) and piece[at] != _QUOTE:
        if piece[at] == _BACKSLASH:
            count += 1
            at += _escape_length(piece, at)
        else:
            count += piece[at] & 0xC0 != 0x80
            at += 1
    return count


def _escape_length(piece: bytes, at: int) -> int:
    if piece[at + 1 : at + 2] != b"u":
        return 2
    return 12 if _HIGH_SURROGATE.match(piece, at) else 6


MAX_GRAMMARS = 256  # compiled grammars kept per model, least recently used first out
MAX_GRAMMAR_BYTES = 512 * 1024 * 1024  # of them all; a typical one holds 0.1-7 MB
COMPILE_BUDGET_S = 20.0
MAX_CACHE_BYTES = 256 * 1024 * 1024  # of xgrammar's own cache of rules, which schemas that resemble each other share
_COMPILE_THREADS = 2


class GrammarMatcher:
    """Where one sequence stands in its constraint, over token ids.

    Stop tokens are never accepted here (the end of a sequence is the sampler's); `fill_mask` allows them exactly where
    `may_end`. Owned by one sequence; not thread-safe.
    """

    __slots__ = ("_compiled", "_matcher", "_trail")

    def __init__(
        self, compiled: CompiledGrammar, matcher: xgrammar.GrammarMatcher, trail: BoundedPosition | None
    ) -> None:
        self._compiled = compiled
        self._matcher = matcher
        self._trail = trail

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here, or if it is a stop token."""
        if token_id < 0 or token_id in self._compiled.stop_ids or not self._matcher.accept_token(token_id):
            return False
        if self._trail is None or self._compiled.bounds is None:
            return True
        after = self._compiled.bounds.step(self._trail, token_id)
        if after is None:
            self._matcher.rollback(1)
            return False
        self._trail = after
        return True

    def fork(self) -> Self:
        """An independent copy at the same place."""
        return type(self)(self._compiled, self._matcher.fork(), self._trail)

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` accepted tokens.

        Raises:
            ValueError: fewer were accepted.
        """
        try:
            self._matcher.rollback(tokens)
        except RuntimeError as error:
            raise ValueError(f"cannot undo {tokens} tokens: fewer were accepted") from error
        for _ in range(tokens):
            self._trail = self._trail and self._trail.before

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""
        return bool(self._matcher.is_completed())

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""
        if not self.may_end:
            return False
        if self._trail is not None:
            return self._trail.exact.must_end
        row = torch.empty_like(self._compiled.ends)
        self.fill_mask(row)
        return torch.equal(row, self._compiled.ends)

    def fill_mask(self, row: Tensor) -> None:
        """Write into row int32 [ceil(V / 32)] (contiguous, CPU): bit i % 32 of word i // 32 = token i is allowed. A row of zeros
        means that no token continues the text, though the grammar could: the vocabulary lacks the bytes.
        """
        if row.device.type != "cpu" or not row.is_contiguous():
            raise ValueError("a mask row has to be contiguous and on the CPU")
        self._matcher.fill_next_token_bitmask(row.unsqueeze(0), 0)
        if self._trail is not None and self._compiled.bounds is not None:
            self._compiled.bounds.cut(row, self._trail)


class CompiledGrammar:
    """A constraint compiled for one vocabulary. Shared between sequences and threads.

    stop_ids: what ends a text; ends: the mask of them. bounds: string lengths that the compiled grammar leaves out.
    """

    __slots__ = ("_compiled", "bounds", "ends", "memory_bytes", "stop_ids")

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, stop_ids: frozenset[int], ends: Tensor, bounds: LengthBounds | None
    ) -> None:
        self._compiled = compiled
        self.stop_ids = stop_ids
        self.ends = ends
        self.bounds = bounds
        self.memory_bytes = int(compiled.memory_size_bytes)

    def matcher(self) -> GrammarMatcher:
        """A new matcher at the start."""
        trail = None if self.bounds is None else self.bounds.start()
        return GrammarMatcher(self, xgrammar.GrammarMatcher(self._compiled), trail)


class GrammarPool:
    """Compiles constraints for one tokenizer, off the caller's thread, each once; bounded by number and bytes.

    vocab_size: V of the logits (may exceed the tokenizer's; the rest is never allowed). budget_s: seconds a compilation may
    take once begun. Control tokens are never allowed inside text; every stop id of the model ends it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, budget_s: float = COMPILE_BUDGET_S) -> None:
        self._budget_s = budget_s
        self._stop_ids = tokenizer.stop_ids
        self._tokens = TokenTable(_token_bytes(tokenizer, vocab_size))
        self._ends = self._tokens.mask_of(sorted(tokenizer.stop_ids))
        info = xgrammar.TokenizerInfo(
            list(self._tokens.table),
            xgrammar.VocabType.RAW,
            vocab_size=vocab_size,
            stop_token_ids=sorted(tokenizer.stop_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=MAX_CACHE_BYTES)
        self._threads = ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="grammar")
        self._futures: OrderedDict[ConstraintSpec, Future[CompiledGrammar]] = OrderedDict()
        self._unanswered: set[Future[CompiledGrammar]] = set()
        self._lock = RLock()  # work that ends at once is settled inside `compile`

    def compile(self, spec: ConstraintSpec) -> Future[CompiledGrammar]:
        """The compiled constraint; the same future for equal specs, so do not cancel it.

        It raises ConstraintError: malformed, unsupported, empty, too large, or not compiled within the time budget (then
        `retryable`, and the next call tries again).
        """
        with self._lock:
            future = self._futures.get(spec)
            if future is None:
                future = self._futures[spec] = Future()
                self._unanswered.add(future)
                self._threads.submit(self._compile_in_time, spec, future).add_done_callback(
                    partial(self._settle, future)
                )
                self._evict()
            self._futures.move_to_end(spec)
            return future

    def close(self) -> None:
        """End the threads. A compilation that has begun runs to its end in the background; those that have not are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile_in_time(self, spec: ConstraintSpec, future: Future[CompiledGrammar]) -> CompiledGrammar:
        overdue = Timer(self._budget_s, self._give_up, (spec, future))
        overdue.daemon = True
        overdue.start()
        try:
            return self._compile(spec)
        finally:
            overdue.cancel()

    def _give_up(self, spec: ConstraintSpec, future: Future[CompiledGrammar]) -> None:
        """Answer those who wait. The compiler cannot be interrupted: its thread goes on, and its result is dropped."""
        if self._claims(future):
            with self._lock:
                self._futures.pop(spec, None)
            future.set_exception(
                ConstraintError(
                    f"the constraint is not compiled after {self._budget_s:g} s",
                    hint="simplify it; smaller bounds help most",
                    retryable=True,
                )
            )

    def _settle(self, future: Future[CompiledGrammar], work: Future[CompiledGrammar]) -> None:
        if not self._claims(future):
            return
        if work.cancelled():
            future.cancel()
        elif (error := work.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(work.result())

    def _claims(self, future: Future[CompiledGrammar]) -> bool:
        """Whether the caller is the first who may answer. The answer itself is given without the lock: it runs callbacks."""
        with self._lock:
            first = future in self._unanswered
            self._unanswered.discard(future)
            return first

    def _compile(self, spec: ConstraintSpec) -> CompiledGrammar:
        grammar = parse_constraint(spec)
        loose = relaxed(grammar, self._tokens.reach)
        try:
            compiled = self._compiler.compile_grammar(to_ebnf(loose))
        except RuntimeError as error:
            raise ConstraintError(
                "the constraint could not be compiled into token masks", hint="simplify it; smaller bounds help most"
            ) from error
        bounds = None if loose is grammar else LengthBounds(compile_constraint(spec).automaton, self._tokens)
        return CompiledGrammar(compiled, self._stop_ids, self._ends, bounds)

    def _evict(self) -> None:
        """Forget the least recently used grammars that are done, down to the limits."""
        for spec, future in list(self._futures.items()):
            if len(self._futures) <= MAX_GRAMMARS and self._held_bytes() <= MAX_GRAMMAR_BYTES:
                return
            if future.done():
                del self._futures[spec]

    def _held_bytes(self) -> int:
        done = (f for f in self._futures.values() if f.done() and not f.cancelled() and f.exception() is None)
        return sum(future.result().memory_bytes for future in done)


def _token_bytes(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Every token's bytes; an empty entry is never allowed in text (control tokens, ids beyond the tokenizer's)."""
    known = min(tokenizer.vocab_size, vocab_size)
    blank = tokenizer.control_ids | tokenizer.stop_ids
    return [b"" if i in blank else tokenizer.token_bytes(i) for i in range(known)] + [b""] * (vocab_size - known)
