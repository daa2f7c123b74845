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

from ..errors import CassetteError, SpecError
from ..ir.execution import Executor, resolve
from ..runtime.backends.interpreted import HasTarget, InterpretedExecutor
from ..runtime.backends.replay.cassette import RecordingTarget, ReplayTarget
from ..runtime.backends.replay.tape import Redactor, Tape

CassetteMode: TypeAlias = Literal["auto", "record", "replay"]
MODE_VARIABLE = "SGLANG_DSL_CASSETTES"  # overrides "auto", as in CI: SGLANG_DSL_CASSETTES=replay


class RecordingExecutor(InterpretedExecutor):
    """Implements `Executor`: passes calls on, and writes the file when it is closed."""

    def __init__(self, path: Path, executor: Executor, redactor: Redactor) -> None:
        if not isinstance(executor, HasTarget):
            raise SpecError(f"backend {executor.name!r} has no model whose calls could be recorded")
        self._tape = Tape()
        self._path = path
        self._redactor = redactor
        target = RecordingTarget(executor.target, self._tape, redactor)
        super().__init__(f"record:{path.name}", target, self._save)

    def _save(self) -> None:
        self._tape.save(self._path, self._redactor)


class ReplayExecutor(InterpretedExecutor):
    """Implements `Executor` from a file. As a context manager it checks at the end that every recorded call was made."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        if not path.exists():
            raise CassetteError(f"there is no cassette at {path}", hint="record it with mode='record' and a backend")
        self._replay = ReplayTarget(Tape.load(path), redactor)
        super().__init__(f"replay:{path.name}", self._replay, self._replay.close)

    def verify(self) -> None:
        """Raise CassetteError if recorded calls were not made."""
        unused = self._replay.unused()
        if unused:
            names = ", ".join(repr(take.key["name"] or take.key["node"]) for take in unused[:5])
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
