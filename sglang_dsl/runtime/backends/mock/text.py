"""The mock's text: a token per word or scripted piece, and a ChatML template."""

from __future__ import annotations

from collections.abc import Sequence

from ...text.pieces import END_OF_TEXT, TURN_END, TURN_START, PieceTokenizer
from ...text.plain_templates import ChatMlTemplate
from ...text.protocol import ChatTemplate, Tokenizer

SILENCE = "<|silence|>"  # a token without text: what a slow model says


class MockTokenizer(PieceTokenizer):
    """A PieceTokenizer that can also show control tokens."""

    def __init__(self) -> None:
        control = (END_OF_TEXT, TURN_START, TURN_END, SILENCE)
        super().__init__(control)
        self.silence_id = self.control_id(SILENCE)
        self._shown = {self.control_id(text): text for text in control if text != SILENCE}

    def count(self, text: str) -> int:
        """Tokens of a content text on its own."""
        return len(self.encode(text))

    def show(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        parts: list[str] = []
        content: list[int] = []
        for token_id in token_ids:
            if token_id in self._shown:
                parts += [self.decode(content), self._shown[token_id]]
                content = []
            else:
                content.append(token_id)
        return "".join([*parts, self.decode(content)])


class MockText:
    """Implements `TextModel`."""

    def __init__(self, tokenizer: MockTokenizer, template: ChatTemplate | None = None) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.template: ChatTemplate = template or ChatMlTemplate()
