"""What one generate request has said so far, when it ends, and the result it ends with."""

from __future__ import annotations

from ...ir.execution import FinishReason, TokenScore
from ...ir.path_text import Torn
from ..schedule.request import GenerateRequest
from ..text.output import OutputText
from ..text.protocol import Tokenizer


class SequenceOutput:
    """Ids, scores and text of one sequence. Owner: the engine's loop.

        output = SequenceOutput(request, tokenizer)
        delta = output.take(token_id, score, ended=...)     # until output.finish_reason is set

    Raises:
        SpecError: a stop pattern that cannot be used.
    """

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        self._text = OutputText(tokenizer, request.sampling)
        self._max_tokens = request.sampling.most_tokens
        self._scores: list[TokenScore] = []
        self.generated_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None

    def take(self, token_id: int, score: TokenScore | None, *, ended: bool) -> str:
        """Add a sampled token (`ended`: its constraint is complete); returns the text that may be shown now.

        A stop wins over a complete constraint, and that over the length limit, when one token brings several.
        """
        self.generated_tokens += 1
        if score is not None:
            self._scores.append(score)
        delta = self._text.feed(token_id)
        if (ending := self._text.ending) is not None:
            self.finish_reason, self.matched = ending
        elif ended or self.generated_tokens >= self._max_tokens:
            self.finish_reason = "constraint" if ended else "length"
            delta += self._text.finish()
        return delta

    @property
    def token_ids(self) -> tuple[int, ...]:
        """After the end: the whole tokens kept."""
        return tuple(self._text.token_ids)

    @property
    def covered_ids(self) -> tuple[int, ...]:
        """After the end: the tokens that the text comes from, one that a stop cut included."""
        return tuple(self._text.covered_ids)

    @property
    def scores(self) -> tuple[TokenScore, ...]:
        """After the end: scores of the covered tokens."""
        return tuple(self._scores[: self._text.covered_tokens])

    @property
    def text(self) -> str:
        """Text released so far; after the end all of it."""
        return self._text.text

    @property
    def tail_text(self) -> str:
        """After the end: text kept after the last whole token."""
        return self._text.tail_text

    @property
    def torn(self) -> Torn | None:
        """After the end: where the text begins or ends inside a character."""
        return self._text.torn
