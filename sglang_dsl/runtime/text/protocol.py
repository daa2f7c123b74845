"""What the runtime needs to know about a model's text: its tokenizer and its chat template.

Text between two seams is one `SegmentText`: pieces that are either content (control tokens never recognised) or
control (template markers, `raw(...)`). Adjacent plain stretches are joined before they are encoded, so that content
merges with the template's own plain words exactly as in the model's training data, yet can never forge a marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, overload


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
