"""The cassette file: a header line with facts of the model, then one JSON line per call.

{"format": "sglang-dsl-cassette", "version": 1, "model": ..., "template": {...}, "controls": {...}}
{"key": {...}, "end": 3, "deltas": [["Hel", 1], ["lo", 1]], "result": {...}}
{"key": {...}, "end": 4, "deltas": [], "error": {"type": "EngineError", "what": ..., "retryable": true}}

What makes two calls the same call, and what is different where they are not.

Keeping secrets out of what is stored.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import regex

from .... import errors
from ....errors import DslError, EngineError, FormatError, SpecError
from ....ir.execution import TokenScore
from ....ir.outcome import Torn
from ....ir.specs import entries, utf8_text
from ...schedule.request import GenerateRequest, GenerateResult, Request, Result, ScoreResult
from ...text.tokenizer import Tokenizer

CallKey: TypeAlias = dict[str, Any]  # field -> JSON value

FIELDS = (
    "node",
    "name",
    "model",
    "kind",
    "prompt",
    "choices",
    "unconditional",
    "params",
    "constraint",
    "sample",
    "attempt",
)
_CONTEXT = 24  # characters shown around the first difference of two texts


def key_of(request: Request, model: str, tokenizer: Tokenizer, clean: Callable[[str], str]) -> CallKey:
    """The key of a request. The prompt counts as text, without control tokens; the derived seed does not count.

    Args:
        clean: takes secrets out of texts.
    """
    label = request.label
    key: CallKey = {
        "node": label.node_id,
        "name": label.name,
        "model": model,
        "prompt": clean(tokenizer.decode(request.prompt_ids)),
        "sample": label.sample,
        "attempt": label.attempt,
    }
    if isinstance(request, GenerateRequest):
        params = {name: _plain(value) for name, value in asdict(request.sampling).items() if name != "seed"}
        constraint = request.constraint
        spec = None if constraint is None else {name: _plain(value) for name, value in asdict(constraint).items()}
        return {**key, "kind": "generate", "params": params, "constraint": spec}
    choices = [clean(tokenizer.decode(ids)) for ids in request.continuations]
    return {**key, "kind": "score", "choices": choices, "unconditional": request.unconditional}


def nearest(key: CallKey, recorded: Iterable[CallKey]) -> CallKey | None:
    """The recorded key with the fewest differing fields; among equals, the one with the most similar prompt."""
    keys = list(recorded)
    if not keys:
        return None
    fewest = min(len(differing(key, other)) for other in keys)
    close = [other for other in keys if len(differing(key, other)) == fewest]
    return max(close, key=lambda other: _similarity(key["prompt"], other["prompt"]))


def differing(key: CallKey, other: CallKey) -> list[str]:
    """Names of the fields that differ."""
    return [name for name in FIELDS if key.get(name) != other.get(name)]


def difference(key: CallKey, recorded: CallKey) -> str:
    """In words: the first field that differs, as it is and as it was recorded."""
    name = differing(key, recorded)[0]
    now, then = key.get(name), recorded.get(name)
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        field = next(f for f in {**now, **then} if now.get(f) != then.get(f))
        return f"{name}.{field} is {now.get(field)!r}, recorded was {then.get(field)!r}"
    if isinstance(now, str) and isinstance(then, str):
        at = next((i for i, (a, b) in enumerate(zip(now, then, strict=False)) if a != b), min(len(now), len(then)))
        window = slice(max(at - _CONTEXT, 0), at + _CONTEXT)
        return f"{name} differs at character {at}: it is {now[window]!r}, recorded was {then[window]!r}"
    return f"{name} is {now!r}, recorded was {then!r}"


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a[-400:], b[-400:]).quick_ratio()


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


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
