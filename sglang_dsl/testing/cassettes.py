"""Cassettes: run a program on a model once, and in tests without it.

    with cassette("tests/cassettes/triage.jsonl", backend="local") as backend:
        result = triage.run(tickets, options=RunOptions(backend=backend))

The first time the calls go to the model and are recorded; later they come from the file, split as they were, in the order
in which they ended, with their counts, times and errors. A call that is not on the file fails and says what differs.
Nothing that looks like a key or a token is written down.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import regex

from ..errors import CassetteError, SpecError
from ..ir.execution import Executor, resolve
from ..ir.specs import entries, utf8_text
from ..runtime.backends.cassette import Cassette, RecordingTarget
from ..runtime.backends.interpreted import HasTarget, InterpretedExecutor
from ..runtime.backends.replay import ReplayTarget

CassetteMode: TypeAlias = Literal["auto", "record", "replay"]
MODE_VARIABLE = "SGLANG_DSL_CASSETTES"  # overrides "auto", as in CI: SGLANG_DSL_CASSETTES=replay
REDACTED = "[redacted]"
REDACTION_S = 0.1  # for one text; patterns may backtrack, and other runs wait meanwhile
COMMON_SECRETS = (
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",  # API keys in the style of several providers
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",  # GitHub tokens
    r"\bAKIA[0-9A-Z]{16}\b",  # AWS access key ids
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack tokens
    r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{16,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
)


class RecordingExecutor(InterpretedExecutor):
    """Implements `Executor`: passes calls on, and writes the file when it is closed."""

    def __init__(self, path: Path, executor: Executor, redactor: Redactor) -> None:
        if not isinstance(executor, HasTarget):
            raise SpecError(f"backend {executor.name!r} has no model whose calls could be recorded")
        self._cassette = Cassette()
        self._path = path
        self._redactor = redactor
        target = RecordingTarget(executor.target, self._cassette, redactor)
        super().__init__(f"record:{path.name}", target, self._save)

    def _save(self) -> None:
        self._cassette.save(self._path, self._redactor)


class ReplayExecutor(InterpretedExecutor):
    """Implements `Executor` from a file. As a context manager it checks at the end that every recorded call was made."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        if not path.exists():
            raise CassetteError(f"there is no cassette at {path}", hint="record it with mode='record' and a backend")
        self._replay = ReplayTarget(Cassette.load(path), redactor)
        super().__init__(f"replay:{path.name}", self._replay, self._replay.close)

    def verify(self) -> None:
        """Raise CassetteError if recorded calls were not made."""
        unused = self._replay.unused()
        if unused:
            names = ", ".join(repr(call.key["name"] or call.key["node"]) for call in unused[:5])
            raise CassetteError(
                f"{len(unused)} recorded calls were not made: {names}{', ...' if len(unused) > 5 else ''}",
                hint="if the program is meant to make fewer calls, record again with mode='record'",
            )

    def __exit__(self, *exception: object) -> None:
        self.close()
        if exception[1] is None:
            self.verify()


def cassette(
    path: str | os.PathLike[str],
    *,
    backend: str | Executor | None = None,
    mode: CassetteMode | None = None,
    redact: Iterable[str] = (),
) -> RecordingExecutor | ReplayExecutor:
    """A backend that records on a file, or plays it back.

    Args:
        backend: what to record from; not touched, nor loaded, on replay.
        mode: "record" (anew), "replay", or "auto": replay if the file is there, else record. Left out, the environment
            variable `SGLANG_DSL_CASSETTES`, else "auto".
        redact: further regular expressions of what must not be written down.

    Raises:
        CassetteError: there is nothing to replay. FormatError: the file is damaged. SpecError: an unknown mode.
    """
    file = Path(path)
    chosen = mode or os.environ.get(MODE_VARIABLE) or "auto"
    if chosen not in ("auto", "record", "replay"):
        raise SpecError(f"cassette mode {chosen!r} is unknown", hint="one of 'auto', 'record', 'replay'")
    redactor = Redactor(redact)
    if chosen == "replay" or (chosen == "auto" and file.exists()):
        return ReplayExecutor(file, redactor)
    return RecordingExecutor(file, resolve(backend), redactor)


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
            cleaned: str = self._pattern.sub(REDACTED, text, timeout=REDACTION_S + len(text) * 1e-6, concurrent=True)
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
