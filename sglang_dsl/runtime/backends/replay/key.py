"""What makes two calls the same call, and what is different where they are not."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from ...schedule.request import GenerateRequest, Request
from ...text.protocol import Tokenizer

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
