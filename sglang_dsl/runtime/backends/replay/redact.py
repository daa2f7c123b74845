"""Keeping secrets out of what is stored."""

from __future__ import annotations

from collections.abc import Iterable

import regex

from ....errors import SpecError
from ....ir.specs import entries, utf8_text

REDACTED = "[redacted]"
PATIENCE_S = 0.1  # for one text; patterns may backtrack, and other runs wait meanwhile
COMMON_SECRETS = (
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",  # API keys in the style of several providers
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",  # GitHub tokens
    r"\bAKIA[0-9A-Z]{16}\b",  # AWS access key ids
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack tokens
    r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{16,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
)


class Redactor:
    """Replaces what looks like a secret. The same on recording and on replay, so that keys still match."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        patterns = entries("redact", patterns, r'redact=[r"\btok_\w+"]')
        for pattern in patterns:
            _check(pattern)
        self._pattern = regex.compile("|".join(f"(?:{p})" for p in _without_flags((*COMMON_SECRETS, *patterns))))

    def __call__(self, text: str) -> str:
        """The text without secrets; nothing of it where looking for them takes too long."""
        try:
            cleaned: str = self._pattern.sub(REDACTED, text, timeout=PATIENCE_S + len(text) * 1e-6, concurrent=True)
        except TimeoutError:
            return REDACTED
        return cleaned


def _check(pattern: object) -> None:
    try:
        regex.compile(utf8_text("redact", pattern))
    except regex.error as error:
        raise SpecError(
            f"redact={pattern!r} is not a regular expression: {error}", hint="correct the pattern"
        ) from error


def _without_flags(patterns: Iterable[str]) -> Iterable[str]:
    """A flag inside an alternation has to be scoped to it."""
    for pattern in patterns:
        yield f"(?i:{pattern[4:]})" if pattern.startswith("(?i)") else pattern
