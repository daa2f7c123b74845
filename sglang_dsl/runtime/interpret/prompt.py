"""The prompt along a context path, as the ids one model sees. Persistent: branches share what their parent said.

Text between two seams is one segment and is encoded once. Seams are forks, and the starts and ends of gens and selects:

    text ... text | gen | text ... fork | text ... gen |
    pending       seam   pending   seam   pending
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import RoleError, RunError
from ..cache.keys import TokenIds
from ..text.bos import with_bos
from ..text.fitting import MEASURED_FIRST, check_fits
from ..text.protocol import TextModel, TextPiece, Turns


class Pending(NamedTuple):
    """A piece of text behind those that wait to be encoded with it."""

    piece: TextPiece
    before: Pending | None
    length: int = 0  # characters of content, up to here

    def all(self) -> tuple[TextPiece, ...]:
        """Every piece, in order."""
        found = []
        at: Pending | None = self
        while at is not None:
            found.append(at.piece)
            at = at.before
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids`: up to the last seam. `pending`: the text since then, not encoded yet. `turns`: the conversation so far."""

    ids: TokenIds = field(default_factory=TokenIds)
    pending: Pending | None = None
    turns: Turns = field(default_factory=Turns)

    @property
    def open_role(self) -> str | None:
        """The role of the turn that is open here, if any."""
        return None if self.turns.closed else self.turns.role


class Prompter:
    """Grows prompts for one model. Pure and thread-safe: every method returns a new Prompt."""

    def __init__(self, text: TextModel, model: str, context_tokens: int) -> None:
        self._model = model
        self._context_tokens = context_tokens
        self._tokenizer = text.tokenizer
        self._template = text.template

    def say(self, prompt: Prompt, pieces: Iterable[TextPiece]) -> Prompt:
        """Append text to the current segment."""
        pending, turns = prompt.pending, prompt.turns
        for piece in pieces:
            if piece.text:
                length = len(piece.text) + (pending.length if pending else 0)
                pending, turns = Pending(piece, pending, length), turns.said(piece.text)
        return Prompt(prompt.ids, pending, turns)

    def open_turn(self, prompt: Prompt, role: str) -> tuple[Prompt, str]:
        """Begin a turn; also returns the control text this adds. Raises RoleError."""
        if prompt.open_role is not None:
            raise RoleError(
                f"a {role!r} turn begins inside an open {prompt.open_role!r} turn",
                hint="close the first turn before the next begins",
            )
        marker = self._template.open_turn(prompt.turns, role)
        return _mark(Prompt(prompt.ids, prompt.pending, prompt.turns.opened(role)), marker), marker

    def close_turn(self, prompt: Prompt, role: str) -> tuple[Prompt, str]:
        """End the open turn; also returns the control text this adds. Raises RoleError."""
        if prompt.open_role != role:
            opened = f"the open turn is {prompt.open_role!r}" if prompt.open_role else "no turn is open"
            raise RoleError(f"a {role!r} turn ends, but {opened}", hint=f"begin the {role!r} turn first")
        marker = self._template.close_turn(prompt.turns)
        return _mark(Prompt(prompt.ids, prompt.pending, prompt.turns.ended()), marker), marker

    def seam(self, prompt: Prompt) -> Prompt:
        """Encode what is pending: nothing merges across this point. Raises ContextLengthError where it cannot fit."""
        if prompt.pending is None:
            return prompt
        if prompt.pending.length >= MEASURED_FIRST:
            self.check_fits("".join(p.text for p in prompt.pending.all() if not p.control), before=len(prompt.ids))
        ids = self._tokenizer.encode_segment(prompt.pending.all(), first=not prompt.ids)
        return Prompt(self._joined(prompt.ids, ids), None, prompt.turns)

    def produced(self, prompt: Prompt, token_ids: Sequence[int], text: str, tail_text: str = "") -> Prompt:
        """Append what a model produced at a seam: its ids are kept; `tail_text` beyond them is encoded alone."""
        ids = self._joined(prompt.ids, token_ids)
        if tail_text:
            ids = ids.then(self._tokenizer.encode(tail_text))
        return Prompt(ids, prompt.pending, prompt.turns.said(text))

    def foreign(self, prompt: Prompt, text: str) -> Prompt:
        """Append, at a seam, text that another model produced: a segment of its own."""
        return self.produced(prompt, self._tokenizer.encode(text, first=not prompt.ids), text)

    def check_fits(self, text: str, *, before: int = 0) -> None:
        """Raise ContextLengthError where a text behind so many tokens cannot fit, which is known before it is encoded."""
        room = max(0, self._context_tokens - before)
        check_fits(text, self._tokenizer, room=room, context_tokens=self._context_tokens, model=self._model)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a content text on its own. Raises ContextLengthError where it cannot fit."""
        self.check_fits(text)
        return tuple(self._tokenizer.encode(text))

    def marker_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a control text on its own."""
        return tuple(self._tokenizer.encode_segment((TextPiece(text, control=True),)))

    def call_ids(self, prompt: Prompt) -> TokenIds:
        """What a call at this seam is given. An empty prompt begins with the tokenizer's BOS: a model needs one token.

        Raises:
            RunError: the prompt is empty and the tokenizer has no BOS.
        """
        if prompt.ids:
            return prompt.ids
        if self._tokenizer.bos_id is None:
            raise RunError(
                "a call with an empty prompt, and this model's tokenizer has no beginning-of-text token",
                hint="append some text before the call",
            )
        return TokenIds((self._tokenizer.bos_id,))

    def _joined(self, ids: TokenIds, stretch: Sequence[int]) -> TokenIds:
        """`ids` then `stretch`, with one BOS by id at the front of a prompt whose tokenizer asks for it."""
        return ids.then(stretch) if ids or not stretch else TokenIds(with_bos(stretch, self._tokenizer))


def _mark(prompt: Prompt, marker: str) -> Prompt:
    if not marker:
        return prompt
    length = prompt.pending.length if prompt.pending else 0
    return Prompt(prompt.ids, Pending(TextPiece(marker, control=True), prompt.pending, length), prompt.turns)
