"""The text of one generated sequence: from token ids to what may be shown, up to where it stops."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ...errors import SpecError
from ...ir.outcome import Torn, torn_of
from ...ir.specs import SamplingSpec
from .stops import finders
from .tokenizer import Tokenizer


class Ending(NamedTuple):
    """Why a sequence ended by what it says. `matched`: the stop text, or the stop token's id.

    `stop`: a stop the request asked for. `eos`: a stop id of the model's own.
    """

    reason: Literal["stop", "eos"]
    matched: str | int


class OutputText:
    """Text of one sequence, token by token.

    The deltas joined are `text`, at any token borders: a delta never holds a part of a stop or of a character.
    Bytes that are not UTF-8 become U+FFFD, at the latest in `finish`.

        output = OutputText(tokenizer, sampling)
        delta = output.feed(token_id)       # may be ""; output.ending is set once the sequence has stopped
        rest = output.finish()              # at any other end (length, constraint, cancelled): what was held back

    kept_tokens: after the end, how many of the first tokens lie wholly in `text`, up to a border between characters
    (a hidden or dropped stop token is not among them).
    covered_tokens: and how many `text` comes from: those, and the one that a stop cut.

    Owner: the engine's thread.

    Raises:
        SpecError: a stop pattern that cannot be used, a stop id outside the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingSpec) -> None:
        _check_ids(sampling.stop_token_ids, tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self._finders = finders(sampling.stop, sampling.stop_regex)
        self._asked_ids = frozenset(sampling.stop_token_ids)
        self._model_ids = frozenset() if sampling.ignore_eos else tokenizer.stop_ids
        self._include_stop = sampling.include_stop
        self._min_tokens = sampling.min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._data = bytearray()
        self._ends: list[int] = []  # per token: bytes up to its end
        self._ids: list[int] = []
        self._released = 0  # bytes given to the decoder
        self._chunks: list[str] = []
        self._finished = False
        self.ending: Ending | None = None
        self.kept_tokens = 0
        self.covered_tokens = 0

    def feed(self, token_id: int) -> str:
        """Add a sampled token; returns the text that may be shown now.

        Raises:
            SpecError: a stop pattern took too long; this sequence cannot go on.
        """
        if self._finished:
            raise ValueError("this output has ended; it takes no more tokens")
        ending = self._stop_id(token_id)
        if ending is None or (self._include_stop and ending.reason == "stop"):
            self._append(token_id)
        if ending is not None:
            return self._end(len(self._data), ending)
        if len(self._ids) <= self._min_tokens:
            return self._pass()
        return self._scan()

    def finish(self) -> str:
        """End the sequence where it is; returns what was held back. Idempotent."""
        return "" if self._finished else self._end(len(self._data), None)

    @property
    def text(self) -> str:
        """What was released so far; after the end, the whole text."""
        return "".join(self._chunks)

    @property
    def token_ids(self) -> Sequence[int]:
        """After the end: the first `kept_tokens` ids, those a continuation continues from."""
        return self._ids[: self.kept_tokens]

    @property
    def covered_ids(self) -> Sequence[int]:
        """After the end: the first `covered_tokens` ids, those that the text comes from."""
        return self._ids[: self.covered_tokens]

    @property
    def tail_text(self) -> str:
        """After the end: text after the kept tokens, where a stop cut inside one."""
        return _decode(self._data[self._ends[self.kept_tokens - 1] if self.kept_tokens else 0 :])

    @property
    def torn(self) -> Torn | None:
        """After the end: where the kept tokens begin or end inside a character that their neighbours may make whole."""
        torn = torn_of(self._data)
        if torn is None or not self.kept_tokens:
            return None
        whole = self._ends[self.kept_tokens - 1] == len(self._data)
        return torn if whole else Torn(torn.head) if torn.head else None

    def _stop_id(self, token_id: int) -> Ending | None:
        if token_id in self._asked_ids:
            return Ending("stop", token_id)
        return Ending("eos", token_id) if token_id in self._model_ids else None

    def _append(self, token_id: int) -> None:
        self._data += self._tokenizer.token_bytes(token_id)
        self._ends.append(len(self._data))
        self._ids.append(token_id)

    def _pass(self) -> str:
        for finder in self._finders:
            finder.skip(self._data)
        return self._release(len(self._data))

    def _scan(self) -> str:
        matches = [m for f in self._finders if (m := f.find(self._data)) is not None]
        if matches:
            first = min(matches)
            return self._end(first.end if self._include_stop else first.start, Ending("stop", first.matched))
        return self._release(min([f.held_from() for f in self._finders], default=len(self._data)))

    def _end(self, cut: int, ending: Ending | None) -> str:
        del self._data[cut:]
        self._finished = True
        self.ending = ending
        self.kept_tokens = self._whole_tokens()
        cut_one = next((i + 1 for i, end in enumerate(self._ends) if end >= cut), 0) if cut else 0
        self.covered_tokens = max(self.kept_tokens, cut_one)
        return self._release(cut, final=True)

    def _release(self, until: int, *, final: bool = False) -> str:
        delta = self._decoder.decode(bytes(self._data[self._released : until]), final)
        self._released = until
        if delta:
            self._chunks.append(delta)
        return delta

    def _whole_tokens(self) -> int:
        borders = enumerate(reversed(self._ends))
        return next((len(self._ids) - i for i, end in borders if end <= len(self._data) and self._is_border(end)), 0)

    def _is_border(self, at: int) -> bool:
        """Whether the text is that of the bytes before `at` and of those after it, decoded apart."""
        return at == len(self._data) or _decode(self._data[:at]) + _decode(self._data[at:]) == _decode(self._data)


def _decode(data: bytearray) -> str:
    return data.decode("utf-8", "replace")


def _check_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    outside = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if outside:
        raise SpecError(
            f"stop_token_ids {outside} are outside the vocabulary of {vocab_size} tokens",
            hint=f"give ids from 0 to {vocab_size - 1}",
        )
