"""The mock's text: a token per word or scripted piece, and a ChatML template."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ...cache.keys import TokenIds, TokenStore
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
        self._shown = {self.control_id(text): text.encode() for text in control if text != SILENCE}
        self._bytes: WeakKeyDictionary[TokenStore, tuple[int, bytearray]] = WeakKeyDictionary()

    def count(self, text: str) -> int:
        """Tokens of a content text on its own."""
        return len(self.encode(text))

    def show(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens included. Of a prompt that grows, what was shown before is kept."""
        if not isinstance(token_ids, TokenIds):
            return self._spelled(token_ids).decode("utf-8", "replace")
        count, known = self._bytes.get(token_ids.store, (0, bytearray()))
        if count > len(token_ids):
            return self._spelled(token_ids.tokens()).decode("utf-8", "replace")
        fresh = self._spelled(token_ids.tokens()[count:] if count else token_ids.tokens())
        known = known + fresh
        self._bytes[token_ids.store] = (len(token_ids), known)
        return known.decode("utf-8", "replace")

    def _spelled(self, token_ids: Sequence[int]) -> bytes:
        shown = self._shown
        return b"".join(shown[i] if i in shown else self.token_bytes(i) for i in token_ids)


class MockText:
    """Implements `TextModel`."""

    def __init__(self, tokenizer: MockTokenizer, template: ChatTemplate | None = None) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.template: ChatTemplate = template or ChatMlTemplate()
