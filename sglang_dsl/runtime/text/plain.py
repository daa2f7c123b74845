"""Text without a model's files: chat templates written in Python, for models that bring none and for the mock, and a tokenizer to which
every stretch of text that it meets becomes a token.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...errors import CapacityError, RoleError
from ...ir.specs import shown
from .tokenizer import Marker, TextPiece, Turn, check_text, encode_joined

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
        known = self._ids.get
        words = [word.encode() for word in _WORDS.findall(text)]
        return [token_id if (token_id := known(word)) is not None else self._add(word) for word in words]

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


ROLES = frozenset({"system", "user", "assistant", "tool"})


def check_known(role: str, known: Collection[str], place: int) -> None:
    """Raise RoleError unless `role`, of the message at `place`, is one of those a template knows."""
    if role not in known:
        raise RoleError(
            f"the template has no role {shown(role)} (message {place}); it has {', '.join(sorted(known))}",
            hint="use one of these roles",
        )


class LabelTemplate:
    """For models that bring no template: `User: `, content, an empty line. The roles of `ROLES`, in any order.

    A base model does not end its turns: give `stop` or a constraint.
    """

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`. Raises RoleError for a role it does not know."""
        check_known(role, ROLES, len(turns))
        return f"{role.capitalize()}: "

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        return "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMlTemplate:
    """ChatML: `<|im_start|>role` newline, content, `<|im_end|>` newline.

    Args:
        roles: the roles it accepts.
        alternate: refuse all but user, assistant, user, ... (as Gemma's and Mistral's first templates do).
        default_system: content of a system turn put in front when the first turn is another.
    """

    roles: frozenset[str] = ROLES
    alternate: bool = False
    default_system: str | None = None

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`. Raises RoleError for a role or an order it was told to refuse."""
        self._check(len(turns), role)
        return self._front(turns, role) + f"{TURN_START}{role}\n"

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        return f"{TURN_END}\n"

    def _front(self, turns: Sequence[Turn], role: str) -> str:
        if turns or role == "system" or self.default_system is None:
            return ""
        return f"{TURN_START}system\n{self.default_system}{TURN_END}\n"

    def _check(self, index: int, role: str) -> None:
        check_known(role, self.roles, index)
        if self.alternate and role != ("user", "assistant")[index % 2]:
            raise RoleError(
                f"the template refuses role {role!r} as message {index}: "
                "conversation roles must alternate user/assistant/user/assistant/...",
                hint="merge neighbouring turns of one role, and put system text into the first user turn",
            )
