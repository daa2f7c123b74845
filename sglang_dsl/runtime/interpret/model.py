"""One model of a run: its target, and the prompts of the run's nodes as it sees them."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ContextLengthError
from ...ir.nodes import Fork, Gen, Join, Map, RoleBegin, RoleEnd, Select, Text, taking_part
from ...ir.specs import ConstraintSpec
from ..cache.keys import TokenIds
from .entry import Entry, Produced
from .prompt import Prompt, Prompter
from .target import Target


class Model:
    """A target and the prompt after each entry, computed once per entry. Owner: the run's Machine."""

    def __init__(self, target: Target, user_key: str) -> None:
        self.target = target
        self.prompter = Prompter(target.text, target.info.model, target.info.context_tokens)
        self.namespace = replace(target.info.namespace, user_key=user_key)
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

    def known_tokens(self, context: Entry | None) -> int:
        """Tokens of the path to `context`, which is placed, as far as they are encoded."""
        return len(self.prompt_after(context.anchor if context else None).ids)

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

    def _append(self, prompt: Prompt, produced: Produced) -> Prompt:
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
