"""The cassette file: a header line with facts of the model, then one JSON line per call.

{"format": "sglang-dsl-cassette", "version": 1, "model": ..., "template": {...}, "controls": {...}}
{"key": {...}, "end": 3, "deltas": [["Hel", 1], ["lo", 1]], "result": {...}}
{"key": {...}, "end": 4, "deltas": [], "error": {"type": "EngineError", "what": ..., "retryable": true}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .... import errors
from ....errors import DslError, EngineError, FormatError
from ....ir.execution import TokenScore
from ....ir.path_text import Torn
from ...schedule.request import GenerateResult, Result, ScoreResult
from .key import CallKey

FORMAT = "sglang-dsl-cassette"
VERSION = 1


@dataclass(slots=True)
class Take:
    """One recorded call. `end`: its place in the order in which calls ended. `deltas`: text as it was released, with the
    number of tokens behind it.
    """

    key: CallKey
    end: int = -1
    deltas: list[tuple[str, int]] = field(default_factory=list)
    outcome: Result | Exception | None = None


@dataclass(slots=True)
class Tape:
    """All takes, and what replay has to know of the model: its name and sizes, and how its template and its control
    texts read (`template`: by operation and roles; `controls`: control text -> what of it is plain text).
    """

    model: str = ""
    context_tokens: int = 0
    kv_bytes_per_token: int = 0
    template: dict[str, str] = field(default_factory=dict)
    controls: dict[str, str] = field(default_factory=dict)
    takes: list[Take] = field(default_factory=list)

    def save(self, path: Path, clean: Callable[[str], str]) -> None:
        """Write it aside, then in place. `clean` takes secrets out of every text."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "context_tokens": self.context_tokens,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "template": self.template,
            "controls": self.controls,
        }
        lines = [header, *(_packed(take) for take in self.takes if take.outcome is not None)]
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        aside.write_text(
            "".join(json.dumps(_cleaned(line, clean), ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
        )
        aside.replace(path)

    @classmethod
    def load(cls, path: Path) -> Tape:
        """Read a file.

        Raises:
            FormatError: not a cassette, of another version, or damaged.
        """
        try:
            header, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
            if header.pop("format", None) != FORMAT:
                raise FormatError(f"{path} is not a cassette", hint="record it again")
            if (version := header.pop("version", None)) != VERSION:
                raise FormatError(
                    f"{path} is a cassette of version {version}; this is {VERSION}", hint="record it again"
                )
            return cls(**header, takes=[_unpacked(line) for line in lines])
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{path} is damaged: {error}", hint="record it again") from error


def _packed(take: Take) -> dict[str, Any]:
    line: dict[str, Any] = {"key": take.key, "end": take.end, "deltas": take.deltas}
    if isinstance(take.outcome, Exception):
        return {**line, "error": _packed_error(take.outcome)}
    result = {k: v for k, v in asdict(take.outcome).items() if k != "request_id"} if take.outcome else {}
    if isinstance(take.outcome, GenerateResult):
        result["token_scores"] = [_packed_score(score) for score in take.outcome.token_scores]
        result.pop("prompt_scores", None)
        result["torn"] = None if take.outcome.torn is None else [half.hex() for half in take.outcome.torn]
    return {**line, "result": result}


def _packed_error(error: Exception) -> dict[str, Any]:
    what = error.what if isinstance(error, DslError) else str(error)
    return {"type": type(error).__name__, "what": what, "retryable": getattr(error, "retryable", False)}


def _packed_score(score: TokenScore) -> list[Any]:
    top = [[token_id, logprob, raw.hex()] for token_id, logprob, raw in score.top]
    packed = [score.token_id, score.logprob, score.token_bytes.hex(), top]
    return packed if score.constrained_logprob is None else [*packed, score.constrained_logprob]


def _unpacked(line: dict[str, Any]) -> Take:
    take = Take(line["key"], line["end"], [(text, tokens) for text, tokens in line["deltas"]])
    if "error" in line:
        take.outcome = _unpacked_error(line["error"])
    elif line["key"]["kind"] == "generate":
        result = line["result"]
        scores = tuple(_unpacked_score(score) for score in result.pop("token_scores", ()))
        ids = tuple(result.pop("token_ids"))
        result["covered_ids"] = tuple(result.get("covered_ids", ()))
        result["torn"] = None if result.get("torn") is None else Torn(*map(bytes.fromhex, result["torn"]))
        take.outcome = GenerateResult(request_id="", token_ids=ids, token_scores=scores, **result)
    else:
        result = line["result"]
        logprobs = tuple(tuple(path) for path in result.pop("logprobs"))
        free = tuple(tuple(path) for path in result.pop("unconditional", ()))
        take.outcome = ScoreResult(request_id="", logprobs=logprobs, unconditional=free, **result)
    return take


def _unpacked_error(stored: dict[str, Any]) -> Exception:
    """The error's class where it takes a message alone, else an EngineError that names it."""
    kind = getattr(errors, stored["type"], None)
    if isinstance(kind, type) and issubclass(kind, DslError):
        try:
            return kind(stored["what"], retryable=stored["retryable"])
        except TypeError:
            return EngineError(f"{stored['type']}: {stored['what']}", retryable=stored["retryable"])
    return EngineError(f"{stored['type']}: {stored['what']}", retryable=stored["retryable"])


def _unpacked_score(stored: list[Any]) -> TokenScore:
    token_id, logprob, raw, top, *constrained = stored
    best = tuple((i, p, bytes.fromhex(b)) for i, p, b in top)
    return TokenScore(
        token_id=token_id,
        logprob=logprob,
        token_bytes=bytes.fromhex(raw),
        top=best,
        constrained_logprob=constrained[0] if constrained else None,
    )


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(k): _cleaned(v, clean) for k, v in value.items()}
        case list() | tuple():
            return [_cleaned(item, clean) for item in value]
    return value
