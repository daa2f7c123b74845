"""The text of one generated sequence: from token ids to what may be shown, up to where it stops."""

from __future__ import annotations

import codecs
from typing import Literal, NamedTuple

from ...errors import SpecError
from ...ir.outcome import PartialCharacters, torn_of
from ...ir.specs import SamplingSpec
from .stops import StopFinder, finders
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

    What follows is set at the end:

    token_ids: of the first `kept_tokens` tokens: those that lie wholly in `text`, up to a border between characters (a hidden or
        dropped stop token is not among them). A continuation continues from these.
    covered_ids: of the first `covered_tokens` tokens, those that `text` comes from: the kept ones, and the one that a stop cut.
    tail_text: text after the kept tokens, where a stop cut inside one.
    torn: where the kept tokens begin or end inside a character that their neighbours may make whole.

    Owner: the engine's thread.

    Raises:
        SpecError: a stop pattern that cannot be used, a stop id outside the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingSpec) -> None:
        if outside := [i for i in sampling.stop_token_ids if not 0 <= i < tokenizer.vocab_size]:
            raise SpecError(
                f"stop_token_ids {outside} are outside the vocabulary of {tokenizer.vocab_size} tokens",
                hint=f"give ids from 0 to {tokenizer.vocab_size - 1}",
            )
        self._tokenizer = tokenizer
        self._finders: list[StopFinder] = []
        if sampling.stop or sampling.stop_regex:
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
        self.token_ids: tuple[int, ...] = ()
        self.covered_ids: tuple[int, ...] = ()
        self.tail_text = ""
        self.torn: PartialCharacters | None = None

    def feed(self, token_id: int) -> str:
        """Add a sampled token; returns the text that may be shown now.

        Raises:
            SpecError: a stop pattern took too long; this sequence cannot go on.
        """
        if self._finished:
            raise ValueError("this output has ended; it takes no more tokens")
        ending: Ending | None = None
        if token_id in self._asked_ids:
            ending = Ending("stop", token_id)
        elif token_id in self._model_ids:
            ending = Ending("eos", token_id)
        if ending is None or (self._include_stop and ending.reason == "stop"):
            self._data += self._tokenizer.token_bytes(token_id)
            self._ends.append(len(self._data))
            self._ids.append(token_id)
        if ending is not None:
            return self._end(len(self._data), ending)
        if not self._finders:
            return self._release(len(self._data))
        if len(self._ids) <= self._min_tokens:
            for finder in self._finders:
                finder.skip(self._data)
            return self._release(len(self._data))
        return self._scan()

    def finish(self) -> str:
        """End the sequence where it is; returns what was held back. Idempotent."""
        return "" if self._finished else self._end(len(self._data), None)

    @property
    def text(self) -> str:
        """What was released so far; after the end, the whole text."""
        return "".join(self._chunks)

    def _scan(self) -> str:
        """Release what can be no part of a stop, or end at the first stop there is."""
        matches = [m for f in self._finders if (m := f.find(self._data)) is not None]
        if matches:
            first = min(matches)
            return self._end(first.end if self._include_stop else first.start, Ending("stop", first.matched))
        return self._release(min(f.held_from() for f in self._finders))

    def _end(self, cut: int, ending: Ending | None) -> str:
        del self._data[cut:]
        self._finished = True
        self.ending = ending
        self.kept_tokens = kept = self._whole_tokens()
        cut_one = next((i + 1 for i, end in enumerate(self._ends) if end >= cut), 0) if cut else 0
        self.covered_tokens = max(kept, cut_one)
        self.token_ids = tuple(self._ids[:kept])
        self.covered_ids = tuple(self._ids[: self.covered_tokens])
        kept_bytes = self._ends[kept - 1] if kept else 0
        self.tail_text = _decode(self._data[kept_bytes:])
        if (
            kept and self._data and not (self._data[0] < 0x80 and self._data[-1] < 0x80)
        ):  # ASCII at both ends tears nothing
            torn, whole = torn_of(self._data), kept_bytes == len(self._data)
            self.torn = torn if whole or torn is None else PartialCharacters(torn.head) if torn.head else None
        return self._release(cut, final=True)

    def _release(self, until: int, *, final: bool = False) -> str:
        delta = self._decoder.decode(bytes(self._data[self._released : until]), final)
        self._released = until
        if delta:
            self._chunks.append(delta)
        return delta

    def _whole_tokens(self) -> int:
        """How many tokens end where the text can be cut: decoding the bytes before and after apart gives the same text."""
        data = self._data
        for tokens in range(len(self._ends), 0, -1):
            at = self._ends[tokens - 1]
            if at == len(data):
                return tokens
            if at < len(data) and _decode(data[:at]) + _decode(data[at:]) == _decode(data):
                return tokens
        return 0


def _decode(data: bytearray) -> str:
    return data.decode("utf-8", "replace")
