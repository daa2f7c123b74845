"""The prompt along a context path, as the ids one model sees. Persistent: branches share what their parent said.

Text between two seams is one segment and is encoded once. Seams are forks, and the starts and ends of gens and selects:

    text ... text | gen | text ... fork | text ... gen |
    pending       seam   pending   seam   pending
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...errors import RoleError, RunError
from ..text.bos import with_bos
from ..text.protocol import TextModel, TextPiece, Turn


class Ids:
    """Token ids as a chain of stretches. Immutable; `flat` is remembered where many will ask for it."""

    __slots__ = ("_flat", "_parent", "_stretch", "length")

    length: int

    def __init__(self, stretch: Sequence[int] = (), parent: Ids | None = None) -> None:
        self._stretch = tuple(stretch)
        self._parent = parent
        self._flat: tuple[int, ...] | None = None
        self.length = len(self._stretch) + (parent.length if parent else 0)

    def then(self, stretch: Sequence[int]) -> Ids:
        """These ids followed by `stretch`."""
        return Ids(stretch, self) if stretch else self

    def without_last(self) -> Ids:
        """All but the last id."""
        return Ids(self.flat()[:-1])

    def flat(self, *, keep: bool = False) -> tuple[int, ...]:
        """All ids. `keep` remembers them here, so that what continues from here copies them instead of walking up."""
        stretches: list[tuple[int, ...]] = []
        link: Ids | None = self
        while link is not None:
            stretches.append(link._stretch if link._flat is None else link._flat)
            link = link._parent if link._flat is None else None
        flat = tuple(token for stretch in reversed(stretches) for token in stretch)
        if keep:
            self._flat = flat
        return flat


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids`: up to the last seam. `pending`: the text since then, not encoded yet. `turns`: the conversation so far."""

    ids: Ids = field(default_factory=Ids)
    pending: tuple[TextPiece, ...] = ()
    turns: tuple[Turn, ...] = ()

    @property
    def open_role(self) -> str | None:
        """The role of the turn that is open here, if any."""
        return self.turns[-1].role if self.turns and not self.turns[-1].closed else None


class Prompter:
    """Grows prompts for one model. Pure and thread-safe: every method returns a new Prompt."""

    def __init__(self, text: TextModel) -> None:
        self._tokenizer = text.tokenizer
        self._template = text.template

    def say(self, prompt: Prompt, pieces: Iterable[TextPiece]) -> Prompt:
        """Append text to the current segment."""
        said = tuple(piece for piece in pieces if piece.text)
        return replace(prompt, pending=prompt.pending + said, turns=_grown(prompt.turns, "".join(p.text for p in said)))

    def open_turn(self, prompt: Prompt, role: str) -> tuple[Prompt, str]:
        """Begin a turn; also returns the control text this adds. Raises RoleError."""
        if prompt.open_role is not None:
            raise RoleError(
                f"a {role!r} turn begins inside an open {prompt.open_role!r} turn",
                hint="close the first turn before the next begins",
            )
        marker = self._template.open_turn(prompt.turns, role)
        opened = replace(prompt, turns=(*prompt.turns, Turn(role, "", closed=False)))
        return _mark(opened, marker), marker

    def close_turn(self, prompt: Prompt, role: str) -> tuple[Prompt, str]:
        """End the open turn; also returns the control text this adds. Raises RoleError."""
        if prompt.open_role != role:
            opened = f"the open turn is {prompt.open_role!r}" if prompt.open_role else "no turn is open"
            raise RoleError(f"a {role!r} turn ends, but {opened}", hint=f"begin the {role!r} turn first")
        marker = self._template.close_turn(prompt.turns)
        closed = replace(prompt, turns=(*prompt.turns[:-1], replace(prompt.turns[-1], closed=True)))
        return _mark(closed, marker), marker

    def seam(self, prompt: Prompt) -> Prompt:
        """Encode what is pending: nothing merges across this point."""
        if not prompt.pending:
            return prompt
        ids = self._tokenizer.encode_segment(prompt.pending, first=not prompt.ids.length)
        return replace(prompt, ids=self._joined(prompt.ids, ids), pending=())

    def produced(self, prompt: Prompt, token_ids: Sequence[int], text: str, tail_text: str = "") -> Prompt:
        """Append what a model produced at a seam: its ids are kept; `tail_text` beyond them is encoded alone."""
        ids = self._joined(prompt.ids, token_ids)
        if tail_text:
            ids = ids.then(self._tokenizer.encode(tail_text))
        return replace(prompt, ids=ids, turns=_grown(prompt.turns, text))

    def foreign(self, prompt: Prompt, text: str) -> Prompt:
        """Append, at a seam, text that another model produced: a segment of its own."""
        return self.produced(prompt, self._tokenizer.encode(text, first=not prompt.ids.length), text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a content text on its own."""
        return tuple(self._tokenizer.encode(text))

    def marker_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a control text on its own."""
        return tuple(self._tokenizer.encode_segment((TextPiece(text, control=True),)))

    def call_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """What a call at this seam is given. An empty prompt begins with the tokenizer's BOS: a model needs one token.

        Raises:
            RunError: the prompt is empty and the tokenizer has no BOS.
        """
        if prompt.ids.length:
            return prompt.ids.flat()
        if self._tokenizer.bos_id is None:
            raise RunError(
                "a call with an empty prompt, and this model's tokenizer has no beginning-of-text token",
                hint="append some text before the call",
            )
        return (self._tokenizer.bos_id,)

    def _joined(self, ids: Ids, stretch: Sequence[int]) -> Ids:
        """`ids` then `stretch`, with one BOS by id at the front of a prompt whose tokenizer asks for it."""
        return ids.then(stretch) if ids.length or not stretch else Ids(with_bos(stretch, self._tokenizer))


def _grown(turns: tuple[Turn, ...], text: str) -> tuple[Turn, ...]:
    if not text or not turns or turns[-1].closed:
        return turns
    last = turns[-1]
    return (*turns[:-1], replace(last, content=last.content + text))


def _mark(prompt: Prompt, marker: str) -> Prompt:
    return replace(prompt, pending=(*prompt.pending, TextPiece(marker, control=True))) if marker else prompt
