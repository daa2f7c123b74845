"""A tokenizer without a model: every piece of text that is met becomes a token. For the mock and for tests."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence

from ...errors import CapacityError
from .protocol import TextPiece
from .segments import Marker, check_text, encode_joined

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

_BYTES = 256
_WORDS = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


class PieceTokenizer:
    """Implements `Tokenizer` over a vocabulary that grows.

    Ids 0 to 255 are the single bytes, then come the control tokens in the order given, then pieces in the order in
    which they were first interned: equal programs in equal order get equal ids. Thread-safe.

    Args:
        control: control tokens. The first is the end of text, and like `TURN_END` it stops a generation.
        vocab_size: bound on the ids, the unused ones included.
    """

    def __init__(
        self, control: Sequence[str] = (END_OF_TEXT, TURN_START, TURN_END), *, vocab_size: int = 1 << 20
    ) -> None:
        self.vocab_size = vocab_size
        self.bos_id: int | None = _BYTES  # as in GPT-2: the end of one text is the beginning of the next
        self.adds_bos = False
        self.fingerprint = "pieces"
        self._control = {text: _BYTES + i for i, text in enumerate(control)}
        self._marker = re.compile("(" + "|".join(re.escape(text) for text in control) + ")")
        self.control_ids = frozenset(self._control.values())
        self.eos_id = _BYTES
        self.stop_ids = frozenset(self._control[text] for text in (control[0], TURN_END) if text in self._control)
        self._pieces: list[bytes] = [bytes([i]) for i in range(_BYTES)] + [b""] * len(control)
        self._ids: dict[bytes, int] = {piece: i for i, piece in enumerate(self._pieces[:_BYTES])}
        self._lock = threading.Lock()

    def intern(self, piece: bytes | str) -> int:
        """The id of exactly these bytes (not empty; they may be a part of a character).

        Raises:
            CapacityError: the vocabulary is full.
        """
        raw = piece.encode() if isinstance(piece, str) else piece
        if not raw:
            raise ValueError("an empty piece is no token")
        known = self._ids.get(raw)
        return known if known is not None else self._add(raw)

    def control_id(self, text: str) -> int:
        """The id of a control token. Raises KeyError if there is none of this text."""
        return self._control[text]

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """See `Tokenizer`. There is no dummy prefix here: `first` changes nothing."""
        check_text(text)
        return [self.intern(word) for word in _WORDS.findall(text)]

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """See `Tokenizer`."""
        return encode_joined(pieces, self._split_control, lambda text, _: self.encode(text), first=first)

    def fewest_tokens(self, text: str, enough: int) -> int:
        """See `Tokenizer`."""
        return sum(1 for _ in itertools.islice(_WORDS.finditer(text), enough))

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer`. Raises IndexError for an id not interned yet."""
        return self._pieces[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def _split_control(self, text: str) -> list[str | Marker]:
        parts = [part for part in self._marker.split(text) if part]
        return [Marker(self._control[part]) if part in self._control else part for part in parts]

    def _add(self, raw: bytes) -> int:
        with self._lock:
            if raw not in self._ids:
                if len(self._pieces) >= self.vocab_size:
                    raise CapacityError(
                        f"the mock's vocabulary of {self.vocab_size} pieces is full", hint="give it a larger vocab_size"
                    )
                self._pieces.append(raw)
                self._ids[raw] = len(self._pieces) - 1
            return self._ids[raw]
