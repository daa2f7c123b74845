"""What a run leaves behind: its graph, what every node gave, and how it was run. Stored as JSON lines.

    {"format": "sglang_dsl.record", "version": 1, "program": …, "seed": …, "options": {…}, "versions": {…}}
    {"node": {…}}                                    one per node, in append order
    {"id": …, "outcome": {…}} or {"id": …, "error": [code, what]}
    {"end": {"usage": {…}, "error": null, "lines": n, "hash": "sha256:…"}}    hash: of all lines before it

No secret gets into a record: of the options only plain settings are kept, a backend by its name alone, the namespace
(which may be a user's key) as a digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import FormatError
from .codec import decode_node, encode_node, nesting
from .graph import Graph
from .outcome import Outcome, Usage
from .outcome_codec import (
    RecordedError,
    decode_error,
    decode_outcome,
    decode_usage,
    encode_error,
    encode_outcome,
    encode_usage,
)
from .specs import RunOptions

Redact: TypeAlias = Callable[[str], str]
FORMAT = "sglang_dsl.record"
VERSION = 1
DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A finished run. outcomes and errors: by node id; nodes of sub-graphs have the ids they had in the run.

    options: the plain settings (see `plain_options`). versions: of this package, and of the weights by model.
    """

    program: str = ""
    seed: int = 0
    graph: Graph = field(default_factory=Graph)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    errors: Mapping[str, BaseException] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    error: BaseException | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def plain_options(options: RunOptions) -> dict[str, Any]:
    """What a record keeps of the options: nothing that could be a key, an address with a password, or an object."""
    return {
        "backend": _backend_name(options.backend),
        "models": {alias: _backend_name(backend) for alias, backend in options.models.items()},
        "namespace": _digest(options.namespace) if options.namespace else "",
        "deadline_s": options.deadline_s,
        "priority": options.priority,
        "token_budget": options.token_budget,
    }


def _backend_name(backend: object) -> str:
    """`kind` of `kind:argument`: the argument may hold an address or a path."""
    name = backend if isinstance(backend, str) else getattr(backend, "name", "") or ""
    return str(name).partition(":")[0]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


# --- writing --------------------------------------------------------------------------------------------------------


def save_record(record: RunRecord, path: str | Path, redact: Redact | None = None) -> None:
    """Write a record; the file appears whole or not at all. `redact` is put over every line (see `dump_record`).

    Raises:
        FormatError: a value of the run is not JSON. OSError: the file cannot be written.
    """
    target = Path(path)
    aside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        aside.write_text(dump_record(record, redact), encoding="utf-8")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def dump_record(record: RunRecord, redact: Redact | None = None) -> str:
    """A record as JSON lines. `redact` takes out of each line what is nobody else's business in prompts and answers; what
    it leaves has to be JSON still. Raises FormatError where a value is not JSON.
    """
    with nesting("the run"):
        lines = [_line(data) if redact is None else redact(_line(data)) for data in _body(record)]
    text = "".join(lines)
    end = {
        "usage": encode_usage(record.usage),
        "error": None if record.error is None else encode_error(record.error),
        "lines": len(lines),
        "hash": _hash(text),
    }
    return text + _line({"end": end})


def _body(record: RunRecord) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT,
        "version": VERSION,
        "program": record.program,
        "graph": record.graph.name,
        "seed": record.seed,
        "options": dict(record.options),
        "versions": dict(record.versions),
    }
    for node in record.graph:
        yield {"node": encode_node(node)}
    for node_id, outcome in record.outcomes.items():
        yield {"id": node_id, "outcome": encode_outcome(outcome)}
    for node_id, error in record.errors.items():
        yield {"id": node_id, "error": encode_error(error)}


_SURROGATE = re.compile("[\ud800-\udfff]")  # a tool may give one alone, and no file holds it but as an escape


def _line(data: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    except (TypeError, ValueError) as error:
        raise FormatError(f"the run holds a value that is not JSON: {error}") from error
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# --- reading --------------------------------------------------------------------------------------------------------


def load_record(path: str | Path) -> RunRecord:
    """Read a record. Raises OSError, and FormatError like `parse_record`."""
    return parse_record(Path(path).read_text(encoding="utf-8"))


def parse_record(text: str) -> RunRecord:
    """The record of `dump_record`.

    Raises:
        FormatError: not a record, of another version, cut off, or changed since it was written.
    """
    with nesting("the record"):
        return _parsed_record(text)


def _parsed_record(text: str) -> RunRecord:
    lines = text.split("\n")[:-1]
    parsed = [_parsed(line, number) for number, line in enumerate(lines, start=1)]
    head = _checked_head(parsed[0] if parsed else None)
    end = _checked_end(parsed, text)
    graph = Graph(name=head["graph"])
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, RecordedError] = {}
    for number, data in enumerate(parsed[1:-1], start=2):
        match data:
            case {"node": node}:
                graph.append(decode_node(node))
            case {"id": str() as node_id, "outcome": outcome}:
                outcomes[node_id] = decode_outcome(outcome)
            case {"id": str() as node_id, "error": error}:
                errors[node_id] = decode_error(error)
            case _:
                raise FormatError(f"line {number} of the record is neither a node nor an outcome")
    return RunRecord(
        program=head["program"],
        seed=head["seed"],
        graph=graph.freeze(),
        outcomes=outcomes,
        errors=errors,
        usage=decode_usage(end["usage"]),
        error=None if end["error"] is None else decode_error(end["error"]),
        options=head["options"],
        versions=head["versions"],
    )


def _parsed(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"line {number} of the record is not JSON: {error}") from error


def _checked_head(head: Any) -> Mapping[str, Any]:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FormatError(f'this is not the record of a run: its first line has to hold "format": "{FORMAT}"')
    if head.get("version") != VERSION:
        raise FormatError(
            f"the record has version {head.get('version')!r}; this release reads version {VERSION}",
            hint="read it with the release that wrote it",
        )
    if missing := {"program", "graph", "seed", "options", "versions"} - head.keys():
        raise FormatError(f"the record's first line lacks {', '.join(sorted(missing))}")
    return head


def _checked_end(parsed: list[Any], text: str) -> Mapping[str, Any]:
    match parsed[-1]:
        case {"end": {"usage": _, "error": _, "lines": int() as lines, "hash": str() as written} as end}:
            body = text[: text.rindex("\n", 0, -1) + 1]
            if lines != len(parsed) - 1 or _hash(body) != written:
                raise FormatError("the record was changed after it was written: its hash does not fit")
            return dict(end)
    raise FormatError("the record is cut off: its last line is missing", hint="the run, or the copy of it, did not end")
