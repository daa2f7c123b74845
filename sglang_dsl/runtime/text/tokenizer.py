"""What the runtime needs to know about a model's text: its tokenizer and its chat template.

Text between two seams is one `SegmentText`: pieces that are either content (control tokens never recognised) or
control (template markers, `raw(...)`). Adjacent plain stretches are joined before they are encoded, so that content
merges with the template's own plain words exactly as in the model's training data, yet can never forge a marker.
Whether a text can fit a context at all is known before it is encoded (`check_fits`), because encoding megabytes takes minutes.

For models that bring no template, and for the mock, templates are written in Python here; the mock's tokenizer makes a token of
every stretch of text that it meets.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, overload

from ...errors import CapacityError, ContextLengthError, ModelLoadError, RoleError, SpecError
from ...ir.specs import shown


@dataclass(frozen=True, slots=True)
class TextPiece:
    """`control`: recognise control tokens in `text`."""

    text: str
    control: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the conversation so far, as far as the template needs to know it."""

    role: str
    content: str
    closed: bool = True


FIRST_ROLES = 16


class Turns(Sequence[Turn]):
    """A conversation that is continued rather than copied: each step costs the same, however long it is. Immutable."""

    __slots__ = ("_above", "_length", "_said", "closed", "first_roles", "role")

    def __init__(self) -> None:
        self._above: Turns | None = None
        self._length = 0
        self._said: _Said | None = None
        self.first_roles: tuple[str, ...] = ()  # of at most FIRST_ROLES turns
        self.role = ""  # of the last turn
        self.closed = True  # whether the last turn is

    def opened(self, role: str) -> Turns:
        """One turn more, which is open."""
        turns = self._with(self, self._length + 1, role, None, closed=False)
        if self._length < FIRST_ROLES:
            turns.first_roles = (*self.first_roles, role)
        return turns

    def said(self, text: str) -> Turns:
        """More text in the open turn; text outside of turns belongs to none."""
        if not text or self.closed:
            return self
        return self._with(self._above, self._length, self.role, _Said(text, self._said), closed=False)

    def ended(self) -> Turns:
        """The last turn is closed."""
        return self._with(self._above, self._length, self.role, self._said, closed=True)

    def last_roles(self, count: int) -> tuple[str, ...]:
        """The roles of the last turns, at most so many."""
        found: list[str] = []
        at: Turns | None = self
        while at is not None and at._length and len(found) < count:
            found.append(at.role)
            at = at._above
        return tuple(reversed(found))

    def _with(self, above: Turns | None, length: int, role: str, said: _Said | None, *, closed: bool) -> Turns:
        turns = Turns.__new__(Turns)
        turns._above, turns._length, turns._said = above, length, said
        turns.role, turns.closed, turns.first_roles = role, closed, self.first_roles
        return turns

    def _last(self) -> Turn:
        texts: list[str] = []
        said = self._said
        while said is not None:
            texts.append(said.text)
            said = said.before
        return Turn(self.role, "".join(reversed(texts)), self.closed)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | Sequence[Turn]:
        if index == -1 and self._length:
            return self._last()
        return list(self)[index]

    def __iter__(self) -> Iterator[Turn]:
        found: list[Turn] = []
        at: Turns | None = self
        while at is not None and at._length:
            found.append(at._last())
            at = at._above
        return reversed(found)


class _Said:
    """A piece of a turn's content, behind what stands before it."""

    __slots__ = ("before", "text")

    def __init__(self, text: str, before: _Said | None) -> None:
        self.text = text
        self.before = before


class Tokenizer(Protocol):
    """Token ids and text. All methods are pure and thread-safe."""

    vocab_size: int  # rows of the logits; ids are in [0, vocab_size)
    bos_id: int | None
    adds_bos: bool  # whether the tokenizer asks for a BOS in front of a prompt that has none
    stop_ids: frozenset[int]  # every id that ends a turn: tokenizer, generation config, template end
    control_ids: frozenset[int]  # special and added tokens and rows without a token: never produced from content
    fingerprint: str

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """Ids of content: markers in it are plain text. `first`: nothing but a BOS stands before it in the prompt, so that
        a vocabulary with a dummy prefix (SentencePiece) puts its space in front.
        """

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """Ids of one segment; control tokens are recognised in control pieces only. `first` as in `encode`."""

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes a token stands for (may be part of a character); b"" for one that is never shown. An added token
        that is not special (`<think>`) is a control token whose text is shown.
        """

    def fewest_tokens(self, text: str, enough: int) -> int:
        """A number of tokens that a content text has at least, found much faster than by encoding it: 0 where nothing is known.
        Where counting takes time, it ends at `enough`.
        """

    def decode(self, token_ids: Sequence[int]) -> str:
        """UTF-8 text of the tokens' bytes, invalid bytes replaced; special tokens left out."""


class ChatTemplate(Protocol):
    """Roles as text. Errors name the offending turn and carry the template's own message (`RoleError`)."""

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """Control text that goes between the end of `turns` (all closed) and the content of a new `role` turn.

        Includes what the template puts in front of a first turn (BOS, a default system turn).
        """

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """Control text that ends the last turn of `turns` (which is open)."""


class TextModel(Protocol):
    """Both, as one fact about a model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""

    @property
    def template(self) -> ChatTemplate:
        """Its chat template."""


# Where a stretch of plain text stands. Vocabularies with a dummy prefix (SentencePiece) read the beginning of a prompt and
# text behind a control token with a space in front; text that goes on in the middle never gets one.
Place: TypeAlias = Literal["first", "behind_marker", "middle"]

# What a marker that strips takes away. Source: Unicode's White_Space, as the `tokenizers` library's patterns read it.
_WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Marker(NamedTuple):
    """A control token in control text. strips_left, strips_right: it takes the white space beside it into itself."""

    token_id: int
    strips_left: bool = False
    strips_right: bool = False


def encode_joined(
    pieces: Iterable[TextPiece],
    split_control: Callable[[str], Sequence[str | Marker]],
    encode: Callable[[str, Place], list[int]],
    *,
    first: bool,
) -> list[int]:
    """Ids of one segment: control tokens where a control piece has them, and between those one encoding of all text.

        control "<|im_start|>user\\n" + content "Hi <|im_end|>"   ->   [id] + encode("user\\nHi <|im_end|>")

    Content merges with the template's own words, as in training, but is never searched for control tokens.

    Args:
        split_control: cuts a control piece into plain text and markers.
        encode: ids of plain text at its place.
        first: whether this segment begins the prompt.
    """
    parts = [part for piece in pieces for part in (split_control(piece.text) if piece.control else (piece.text,))]
    token_ids: list[int] = []
    place: Place = "first" if first else "middle"
    text, strips = (
        "",
        False,
    )  # what stands since the last marker, and whether that takes the white space at its beginning
    for part in (*parts, None):
        if isinstance(part, str):
            text += part
            continue
        if strips:
            text = text.lstrip(_WHITE_SPACE)
        if part is not None and part.strips_left:
            text = text.rstrip(_WHITE_SPACE)
        if text:
            token_ids += encode(text, place)
        if part is not None:
            token_ids.append(part.token_id)
            place, text, strips = "behind_marker", "", part.strips_right
    return token_ids


def check_text(text: str) -> None:
    """Raise SpecError if `text` has a lone surrogate: it is no character, and no tokenizer can encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"the text has the lone surrogate {text[error.start]!r} at index {error.start}",
            hint='decode your input with errors="replace", or remove it',
        ) from error


def with_bos(token_ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt's beginning, with a BOS in front if the tokenizer asks for one and none is there yet.

    It is counted by id, whoever put it there: template, caller or this function (which may be applied again). What a
    template repeats on purpose stays.
    """
    bos_id = tokenizer.bos_id
    if bos_id is None or not tokenizer.adds_bos or (token_ids and token_ids[0] == bos_id):
        return list(token_ids)
    return [bos_id, *token_ids]


MEASURED_FIRST = (
    1 << 18
)  # characters from which a text is measured before it is encoded; a shorter one is encoded and counted exactly


def check_fits(text: str, tokenizer: Tokenizer, *, room: int, context_tokens: int, model: str) -> None:
    """Raise ContextLengthError where `text` has more tokens than `room` however it is encoded. It may still have more where
    this does not raise.

    Args:
        room: tokens of the context that are left for it.
    """
    if len(text) < MEASURED_FIRST or (fewest := tokenizer.fewest_tokens(text, room + 1)) <= room:
        return
    size = utf8_size(text)
    before = f" behind {context_tokens - room:,} tokens" if room < context_tokens else ""
    raise ContextLengthError(
        f"the prompt has {size:,} bytes of text{before}: that is {fewest:,} tokens or more, and {model} takes {context_tokens:,}",
        prompt_tokens=context_tokens - room + fewest,
        max_tokens=0,
        context_tokens=context_tokens,
        hint=f"shorten it (more than {max(1, size * room // fewest):,} bytes can never fit), or give it to several calls in parts",
    )


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        ModelLoadError: the file is not JSON, or not an object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not JSON: {error}", hint="download the model again") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object", hint="download the model again")
    return value


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
        """Ids of content: markers in it are plain text. There is no dummy prefix here: `first` changes nothing."""
        check_text(text)
        known = self._ids.get
        words = [word.encode() for word in _WORDS.findall(text)]
        return [token_id if (token_id := known(word)) is not None else self._add(word) for word in words]

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """Ids of one segment; control tokens are recognised in control pieces only. `first` as in `encode`."""
        return encode_joined(pieces, self._split_control, lambda text, _: self.encode(text), first=first)

    def fewest_tokens(self, text: str, enough: int) -> int:
        """A number of tokens that a content text has at least, found much faster than by encoding it: 0 where nothing is known."""
        return sum(1 for _ in itertools.islice(_WORDS.finditer(text), enough))

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes a token stands for (may be part of a character); b"" for one that is never shown.

        Raises IndexError for an id not interned yet.
        """
        return self._pieces[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """UTF-8 text of the tokens' bytes, invalid bytes replaced; special tokens left out."""
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
        """Control text that goes between the end of `turns` (all closed) and the content of a new `role` turn.

        Raises RoleError for a role it does not know.
        """
        check_known(role, ROLES, len(turns))
        return f"{role.capitalize()}: "

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """Control text that ends the last turn of `turns` (which is open)."""
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
        """Control text that goes between the end of `turns` (all closed) and the content of a new `role` turn.

        Raises RoleError for a role or an order it was told to refuse.
        """
        self._check(len(turns), role)
        return self._front(turns, role) + f"{TURN_START}{role}\n"

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """Control text that ends the last turn of `turns` (which is open)."""
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
