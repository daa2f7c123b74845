"""How a branch's text is rendered: the prompt along a context path, as the ids that one model sees.

Text between two seams is one segment and is encoded once. Seams are forks, and the starts and ends of gens and selects:

    text ... text | gen | text ... fork | text ... gen |
    pending       seam   pending   seam   pending

`Prompt` is persistent: branches share what their parent said. `Prompter` grows prompts, `TargetPrompts` is one model of a run with the
prompts after its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...errors import ContextLengthError, RoleError, RunError
from ...ir.nodes import Fork, Gen, Join, Map, RoleBegin, RoleEnd, Select, Text, taking_part
from ...ir.specs import ConstraintSpec
from ..cache.keys import TokenIds
from ..text.tokenizer import MEASURED_FIRST, TextModel, TextPiece, Turns, check_fits, with_bos
from .entries import NO_TURNS, CallOutput, Entry
from .target import Target


class PendingText(NamedTuple):
    """A piece of text behind those that wait to be encoded with it."""

    piece: TextPiece
    before: PendingText | None
    length: int = 0  # characters of content, up to here


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids`: up to the last seam. `pending`: the text since then, not encoded yet. `turns`: the conversation so far."""

    ids: TokenIds = field(default_factory=TokenIds)
    pending: PendingText | None = None
    turns: Turns = NO_TURNS

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
                pending = PendingText(piece, pending, length)
                turns = turns if turns.closed else turns.said(piece.text)
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
        pieces: list[TextPiece] = []
        at: PendingText | None = prompt.pending
        while at is not None:
            pieces.append(at.piece)
            at = at.before
        pieces.reverse()
        if prompt.pending.length >= MEASURED_FIRST:
            self.check_fits("".join(p.text for p in pieces if not p.control), before=len(prompt.ids))
        ids = self._tokenizer.encode_segment(pieces, first=not prompt.ids)
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

    def bos_alone(self) -> TokenIds:
        """What a call behind an empty prompt is given: the tokenizer's BOS, since a model needs one token.

        Raises:
            RunError: the tokenizer has none.
        """
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
    return Prompt(prompt.ids, PendingText(TextPiece(marker, control=True), prompt.pending, length), prompt.turns)


class TargetPrompts:
    """A target and the prompt after each entry, computed once per entry. Owner: the run's Machine."""

    def __init__(self, target: Target, user_key: str) -> None:
        self.target = target
        self.prompter = Prompter(target.text, target.info.model, target.info.context_tokens)
        space = target.info.namespace
        self.namespace = space if space.user_key == user_key else replace(space, user_key=user_key)
        self._after: dict[Entry, Prompt] = {}
        self._seams: dict[Entry | None, Prompt] = {}
        self._audited: set[ConstraintSpec] = set()

    def prompt_after(self, anchor: Entry | None) -> Prompt:
        """The prompt that stands after an entry; the empty one for None. All entries up to it have to be placed."""
        path: list[Entry] = []
        while anchor is not None and anchor not in self._after:
            path.append(anchor)
            anchor = anchor.context.anchor if anchor.context else None
        prompt = self._after[anchor] if anchor is not None else Prompt()
        for entry in reversed(path):
            prompt = self._after[entry] = self._step(entry, prompt)
        return prompt

    def seam_after(self, anchor: Entry | None) -> Prompt:
        """The prompt for a call that hangs on `anchor`: encoded once for all of them."""
        seam = self._seams.get(anchor)
        if seam is None:
            seam = self._seams[anchor] = self.prompter.seam(self.prompt_after(anchor))
        return seam

    def check_length(self, prompt_tokens: int, wanted_tokens: int, entry: Entry) -> None:
        """Raise ContextLengthError if a prompt of so many tokens, or more, leaves too little room."""
        context_tokens = self.target.info.context_tokens
        if prompt_tokens + wanted_tokens > context_tokens:
            room = context_tokens - prompt_tokens
            shorter = f", or lower max_tokens to at most {room}" if room > 0 else f" by {1 - room} tokens or more"
            raise ContextLengthError(
                f"the prompt has at least {prompt_tokens} tokens and {wanted_tokens} more are asked for: "
                f"{prompt_tokens + wanted_tokens} in all, but {self.target.info.model} takes {context_tokens}",
                prompt_tokens=prompt_tokens,
                max_tokens=wanted_tokens,
                context_tokens=context_tokens,
                hint=f"shorten the prompt{shorter}",
                origin=entry.node.origin,
            )

    def audit(self, constraint: ConstraintSpec | None) -> None:
        """Have a constraint checked, and its compilation begun, when it is first met. Raises ConstraintError."""
        if constraint is not None and constraint not in self._audited:
            self.target.audit(constraint)
            self._audited.add(constraint)

    def _step(self, entry: Entry, prompt: Prompt) -> Prompt:
        match entry.node:
            case Text():
                return self.prompter.say(prompt, entry.pieces)
            case RoleBegin(role=role):
                return self.prompter.open_turn(prompt, role)[0]
            case RoleEnd(role=role):
                return self.prompter.close_turn(prompt, role)[0]
            case Fork() | Map():
                return self.prompter.seam(prompt)
            case Gen() | Select() if entry.produced is not None:
                return self._append(self._seam_before(entry, prompt), entry.produced)
            case Join() as join:
                return self._concatenate(entry, join, self.prompter.seam(prompt))
        raise TypeError(f"a {entry.node.kind} node adds no text")

    def _seam_before(self, entry: Entry, prompt: Prompt) -> Prompt:
        """The prompt in front of a call: that of the call itself, where it was made of this very one."""
        anchor = entry.context.anchor if entry.context else None
        made_of_it = anchor in self._seams and self.prompt_after(anchor) is prompt
        return self._seams[anchor] if made_of_it else self.prompter.seam(prompt)

    def _append(self, prompt: Prompt, produced: CallOutput) -> Prompt:
        if produced.target is self.target:
            if produced.healed:
                prompt = replace(prompt, ids=TokenIds(prompt.ids.tokens()[:-1]))
            return self.prompter.produced(prompt, produced.token_ids, produced.text, produced.tail_text)
        return self.prompter.foreign(prompt, produced.text)

    def _concatenate(self, entry: Entry, join: Join, prompt: Prompt) -> Prompt:
        """What the branches said, replayed in branch order: their generated ids stay as they are."""
        fork = entry.scope.find(join.fork)
        for tip in taking_part(join, join.tips):
            for said in entries_between(fork, entry.scope.find(tip)):
                prompt = self._step(said, prompt)
            prompt = self.prompter.seam(prompt)
        return prompt


def entries_between(fork: Entry, tip: Entry) -> list[Entry]:
    """The entries of a branch that add text, in order, from after `fork` up to `tip`."""
    path: list[Entry] = []
    anchor = tip.anchor
    while anchor is not None and anchor is not fork:
        path.append(anchor)
        anchor = anchor.context.anchor if anchor.context else None
    return path[::-1]
