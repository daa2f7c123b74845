"""What the runtime needs to know about a model's text: its tokenizer and its chat template.

Text between two seams is one `SegmentText`: pieces that are either content (control tokens never recognised) or
control (template markers, `raw(...)`). Adjacent plain stretches are joined before they are encoded, so that content
merges with the template's own plain words exactly as in the model's training data, yet can never forge a marker.
Whether a text can fit a context at all is known before it is encoded (`check_fits`), because encoding megabytes takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, overload

from ...errors import ContextLengthError, SpecError


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
