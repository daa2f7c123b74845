"""Whether a text can fit a context at all, known before it is encoded: encoding megabytes takes minutes."""

from __future__ import annotations

from ...errors import ContextLengthError
from .protocol import Tokenizer

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
