"""A scripted reply while it is played, token by token, under its call's constraint."""

from __future__ import annotations

from random import Random

from ....errors import ScriptError
from ...cache.keys import tokens_of
from ...constrain.compile import CompiledConstraint, compile_constraint
from ...schedule.step import OpenSequence
from .reply import Piece, Reply
from .text import MockTokenizer


class Playing:
    """One sequence. Owner: the worker.

    masked: where the reply breaks its constraint, it is cut and completed by an allowed text, as a model's would be.
    """

    def __init__(self, opened: OpenSequence, reply: Reply, tokenizer: MockTokenizer, *, masked: bool) -> None:
        self.opened = opened
        self.generated = 0
        self.tokens_so_far = tokens_of(opened.prompt_ids)
        self._reply = reply
        self._tokenizer = tokenizer
        self._masked = masked
        constraint = None if reply.unchecked else opened.constraint
        self._compiled = None if constraint is None else compile_constraint(constraint)
        self._matcher = None if self._compiled is None else self._compiled.matcher(tokenizer.token_bytes)
        self._silent = min(reply.silent_tokens, opened.sampling.most_tokens)
        self._tokens = [(tokenizer.silence_id, Piece(""))] * self._silent + self._scripted()

    def replay(self, token_id: int) -> None:
        """A token generated before the sequence was set aside."""
        self._step(self.generated)
        self._keep(token_id)

    def next(self, index: int) -> tuple[int, Piece, bool]:
        """The token at `index`, and whether its constraint allows nothing more.

        Raises:
            ScriptError: the reply breaks the call's constraint. Or whatever error the script asks for.
        """
        if self._reply.error is not None and index >= self._reply.error_after:
            raise self._reply.error
        ended = self._step(index)
        token_id, piece = self._tokens[index] if index < len(self._tokens) else (self._tokenizer.eos_id, Piece(""))
        self._keep(token_id)
        return token_id, piece, ended

    def _keep(self, token_id: int) -> None:
        self.tokens_so_far.append(token_id)
        self.generated += 1

    def _step(self, index: int) -> bool:
        """Step the matcher over token `index`; whether nothing may follow."""
        matcher = self._matcher
        if matcher is None or self._compiled is None or index < self._silent:
            return False
        if index >= len(self._tokens):
            if matcher.may_end:
                return False
            self._complete(self._compiled, index, "it ends before the constraint is complete")
        elif matcher.accept(self._tokens[index][0]):
            return matcher.must_end
        else:
            self._complete(
                self._compiled, index, f"token {index} ({self._tokens[index][1].raw!r}) is not allowed there"
            )
        if index < len(self._tokens):
            matcher.accept(self._tokens[index][0])
        return matcher.must_end

    def _complete(self, compiled: CompiledConstraint, index: int, why: str) -> None:
        """Put an allowed text in place of what is left from token `index` on."""
        if not self._masked:
            raise self._broken(why)
        said = b"".join(self._tokenizer.token_bytes(token_id) for token_id, _ in self._tokens[self._silent : index])
        try:
            rest = compiled.complete(said.decode(), Random(index))
        except ValueError as error:  # cut inside a character: only the script's author knows what it should be
            raise self._broken(why) from error
        self._tokens[index:] = self._cut(rest)

    def _scripted(self) -> list[tuple[int, Piece]]:
        if self._reply.pieces is None:
            return self._cut(self._reply.text)
        return [(self._tokenizer.intern(piece.raw), piece) for piece in self._reply.pieces]

    def _cut(self, text: str) -> list[tuple[int, Piece]]:
        ids = self._tokenizer.encode(text)
        return [(token_id, Piece(self._tokenizer.token_bytes(token_id))) for token_id in ids]

    def _broken(self, why: str) -> ScriptError:
        label, constraint = self.opened.label, self.opened.constraint
        said = self._reply.text or [piece.raw for _, piece in self._tokens]
        return ScriptError(
            f"the scripted reply {said!r} to {label.name or label.node_id!r} breaks its constraint: {why}; "
            f"the constraint is {constraint.text[:120] if constraint else ''}",
            hint="script a valid reply, use malformed(...) to send it anyway, or mock(masked=True) to have it cut as a "
            "model's would be",
        )
