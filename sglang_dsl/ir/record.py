"""Stored runs: what a run leaves behind, as JSON lines, and two runs side by side.

    {"format": "sglang_dsl.record", "version": 1, "kind": "run", "program": …, "graph": …, "seed": …, "options": {…}, "versions": {…}}
    {"node": {…}}                                    one per node, in append order
    {"id": …, "outcome": {…}} or {"id": …, "error": [code, what]}
    {"end": {"usage": {…}, "error": null, "lines": n, "hash": "sha256:…"}}    hash: of all lines before it

The other kind, "calls", is the cassette: its first line has facts of the model, each further one a call and what came back
(`runtime/backends/cassette.py`). Both are written and read by the same functions, `dump_lines` and `parse_lines`.

No secret gets into a record: of the options only plain settings are kept, a backend by its name alone, the namespace
(which may be a user's key) as a digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import get_ident
from typing import Any, Literal, TypeAlias, TypeVar

from ..errors import FormatError
from .codec import Data, decode, decode_node, encode, encode_node, encode_outcome, nesting
from .graph import Graph
from .nodes import Json
from .outcome import Outcome, Usage
from .specs import RunOptions, shown
from .values import decode_error, encode_error, encode_value

Redact: TypeAlias = Callable[[str], str]
StoredKind: TypeAlias = Literal["run", "calls"]
Head = TypeVar("Head")
End = TypeVar("End")
FORMAT = "sglang_dsl.record"
VERSION = 1
NAMES: Mapping[StoredKind, str] = {"run": "record", "calls": "cassette"}
DIGEST_CHARACTERS = 16
DifferenceKind = Literal["only in a", "only in b", "node", "error", "output", "winners"]
EXCERPT = 60


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


# --- lines ----------------------------------------------------------------------------------------------------------


def dump_lines(kind: StoredKind, head: Any, lines: Iterable[Data], end: Any, *, redact: Redact | None = None) -> str:
    """A stored run. `head` and `end` are dataclasses: what the first line has to say, and the last one besides its hash.
    `redact` takes out of every text what is nobody else's business. Raises FormatError where a value is not JSON.
    """
    whole = {"format": FORMAT, "version": VERSION, "kind": kind, **encode(head)}
    with nesting(f"the {NAMES[kind]}"):
        written = [_line(data if redact is None else _redacted(data, redact)) for data in (whole, *lines)]
    text = "".join(written)
    return text + _line({"end": {**encode(end), "lines": len(written), "hash": _hash(text)}})


_SURROGATE = re.compile("[\ud800-\udfff]")  # a tool may give one alone, and no file holds it but as an escape


def _line(data: Data) -> str:
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    except (TypeError, ValueError) as error:
        raise FormatError(f"the run holds a value that is not JSON: {error}") from error
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _redacted(data: Any, redact: Redact) -> Any:
    match data:
        case str():
            return redact(data)
        case dict():
            return {redact(key): _redacted(item, redact) for key, item in data.items()}
        case list() | tuple():
            return [_redacted(item, redact) for item in data]
    return data


def save_text(path: Path, text: str) -> None:
    """Write a file; it appears whole or not at all. A device or a pipe is written to and stays what it is, as does a link.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return
    aside = aside_of(path)
    try:
        aside.write_text(text, encoding="utf-8", errors="surrogatepass")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def aside_of(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{get_ident()}.part")


def load_text(path: Path, kind: StoredKind) -> str:
    """The text of a stored run. Raises OSError, and FormatError for a file that is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not a {NAMES[kind]}: it is damaged, or not text") from error


def parse_lines(
    kind: StoredKind, text: str, head: type[Head], line: Callable[[Data], None], end: type[End]
) -> tuple[Head, End]:
    """What `dump_lines` was given: the first line and the last one. `line` is called with each line between them.

    Raises:
        FormatError: another file, of another version, cut off, damaged, or changed since it was written.
    """
    name = NAMES[kind]
    with nesting(f"the {name}"):
        raw = text.split("\n")
        parsed = [
            _parsed(each, f"line {number} of the {name}")
            for number, each in enumerate(raw[: -1 if raw[-1] == "" else None], 1)
        ]
        first = decode(head, _checked_head(kind, parsed[0] if parsed else None), f"line 1 of the {name}")
        last = _checked_end(name, parsed, text)
        for number, data in enumerate(parsed[1:-1], start=2):
            try:
                line(data)
            except FormatError as error:
                raise FormatError(f"line {number} of the {name}: {error.what}", hint=error.hint) from error
        return first, decode(end, last, f"the last line of the {name}")


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON, so the file is damaged or cut off: {error}") from error


def _checked_head(kind: StoredKind, head: Any) -> Data:
    """The first line without what every stored run has there."""
    name = NAMES[kind]
    found = dict(head) if isinstance(head, dict) else {}
    form, version, stored = found.pop("format", None), found.pop("version", None), found.pop("kind", "run")
    if form == "sglang-dsl-cassette":
        raise FormatError(
            f"this is a cassette of an earlier format (version {version}), which is no longer read",
            hint="record it again with mode='record'",
        )
    if form != FORMAT:
        what = "the record of a run" if kind == "run" else "a cassette"
        raise FormatError(f'this is not {what}: its first line has to hold "format": "{FORMAT}"')
    if version != VERSION:
        raise FormatError(
            f"the {name} has version {version!r}; this release reads version {VERSION}",
            hint="read it with the release that wrote it, or record it again",
        )
    if stored != kind:
        other = next((words for known, words in NAMES.items() if known == stored), None)
        raise FormatError(
            f'this is not a {name} but a {other or shown(stored)}: its first line holds "kind": {json.dumps(stored)}'
        )
    return found


def _checked_end(name: str, parsed: list[Any], text: str) -> Data:
    """The last line without what every stored run has there."""
    match parsed[-1]:
        case {"end": {"lines": int() as lines, "hash": str() as written} as end}:
            body = text[: text.rstrip("\n").rindex("\n") + 1]
            if lines != len(parsed) - 1 or _hash(body) != written:
                raise FormatError(f"the {name} was changed after it was written: its hash does not fit")
            return {key: value for key, value in dict(end).items() if key not in ("lines", "hash")}
    raise FormatError(
        f"the {name} is cut off: its last line is missing", hint="the run, or the copy of it, did not end"
    )


# --- records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    program: str
    graph: str
    seed: int
    options: Mapping[str, Json]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    usage: Usage
    error: BaseException | None


def save_record(record: RunRecord, path: str | Path, redact: Redact | None = None) -> None:
    """Write a record; the file appears whole or not at all. `redact` is put over every text (see `dump_record`).

    Raises:
        FormatError: a value of the run is not JSON. OSError: the file cannot be written.
    """
    save_text(Path(path), dump_record(record, redact))


def dump_record(record: RunRecord, redact: Redact | None = None) -> str:
    """A record as JSON lines. `redact` takes out of every text what is nobody else's business in prompts and answers.
    Raises FormatError where a value is not JSON.
    """
    head = _Head(
        program=record.program,
        graph=record.graph.name,
        seed=record.seed,
        options=record.options,
        versions=record.versions,
    )
    return dump_lines("run", head, _lines(record), _End(usage=record.usage, error=record.error), redact=redact)


def _lines(record: RunRecord) -> Iterator[Data]:
    for node in record.graph:
        yield {"node": encode_node(node)}
    for node_id, outcome in record.outcomes.items():
        yield {"id": node_id, "outcome": encode_outcome(outcome)}
    for node_id, error in record.errors.items():
        yield {"id": node_id, "error": encode_error(error)}


def load_record(path: str | Path) -> RunRecord:
    """Read a record. Raises OSError, and FormatError like `parse_record`."""
    return parse_record(load_text(Path(path), "run"))


def parse_record(text: str) -> RunRecord:
    """The record of `dump_record`.

    Raises:
        FormatError: not a record, of another version, cut off, or changed since it was written.
    """
    nodes = Graph()
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, BaseException] = {}

    def line(data: Data) -> None:
        match data:
            case {"node": node, **rest} if not rest:
                nodes.append(decode_node(node))
            case {"id": str() as node_id, "outcome": outcome, **rest} if not rest:
                outcomes[node_id] = decode(Outcome, outcome, f"the outcome of {shown(node_id)}")
            case {"id": str() as node_id, "error": error, **rest} if not rest:
                errors[node_id] = decode_error(error)
            case _:
                raise FormatError("it is neither a node nor an outcome")

    head, end = parse_lines("run", text, _Head, line, _End)
    nodes.name = head.graph
    return RunRecord(
        program=head.program,
        seed=head.seed,
        graph=nodes.freeze(),
        outcomes=outcomes,
        errors=errors,
        usage=end.usage,
        error=end.error,
        options=head.options,
        versions=head.versions,
    )


# --- two records ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """How one node differs. token: index of the first generated token that does, where the outputs have ids."""

    node_id: str
    kind: DifferenceKind
    what: str
    token: int | None = None

    def __str__(self) -> str:
        return f"{self.node_id}: {self.what}"


@dataclass(frozen=True, slots=True)
class Difference:
    """All differences in node order, the first of them first, and usage of the second run minus that of the first."""

    nodes: tuple[NodeDifference, ...]
    settings: tuple[str, ...]
    usage: Mapping[str, float]

    @property
    def first(self) -> NodeDifference | None:
        """Where the runs part: what follows may differ for no other reason."""
        return self.nodes[0] if self.nodes else None

    def __bool__(self) -> bool:
        return bool(self.nodes or self.settings)

    def __str__(self) -> str:
        lines = [f"settings: {what}" for what in self.settings]
        if self.first is None:
            lines.append("no node differs")
        else:
            lines.append(f"first difference at {self.first}")
            lines.extend(f"  also {node}" for node in self.nodes[1:20])
            lines.extend([f"  and {len(self.nodes) - 20} more"] if len(self.nodes) > 20 else [])
        changed = [f"{name} {change:+,g}" for name, change in self.usage.items() if change]
        lines.append(f"cost: {', '.join(changed) or 'the same'}")
        return "\n".join(lines)


def difference(a: RunRecord, b: RunRecord) -> Difference:
    """What changed from run `a` to run `b`, aligned by node id."""
    return Difference(
        nodes=tuple(found for node_id in _ids(a, b) if (found := _node_difference(node_id, a, b)) is not None),
        settings=tuple(_settings(a, b)),
        usage={f.name: getattr(b.usage, f.name) - getattr(a.usage, f.name) for f in fields(Usage)},
    )


def _ids(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """Every node id once: in the order of `a`, those only in `b` after their predecessor there."""
    order = [*(node.id for node in a.graph), *a.outcomes, *a.errors]
    seen = dict.fromkeys(order)
    after: dict[str, list[str]] = {}
    previous = ""
    for node_id in dict.fromkeys([*(node.id for node in b.graph), *b.outcomes, *b.errors]):
        if node_id in seen:
            previous = node_id
        else:
            after.setdefault(previous, []).append(node_id)
    yield from after.get("", ())
    for node_id in seen:
        yield node_id
        yield from after.get(node_id, ())


def _node_difference(node_id: str, a: RunRecord, b: RunRecord) -> NodeDifference | None:
    in_a, in_b = _known(node_id, a), _known(node_id, b)
    if not (in_a and in_b):
        where: DifferenceKind = "only in a" if in_a else "only in b"
        return NodeDifference(
            node_id, where, f"is {where.replace('in a', 'in the first run').replace('in b', 'in the second run')}"
        )
    if node_id in a.graph and node_id in b.graph:
        fields_changed = list(_changed_fields(node_id, a, b))
        if fields_changed:
            return NodeDifference(node_id, "node", "; ".join(fields_changed))
    errors = [encode_error(r.errors[node_id]) if node_id in r.errors else None for r in (a, b)]
    if errors[0] != errors[1]:
        shown = [f"{e[0]} {_short(e[1])}" if e else "no error" for e in errors]
        return NodeDifference(node_id, "error", f"{shown[0]} → {shown[1]}")
    return _outcome_difference(node_id, a.outcomes.get(node_id), b.outcomes.get(node_id))


def _known(node_id: str, record: RunRecord) -> bool:
    return node_id in record.graph or node_id in record.outcomes or node_id in record.errors


def _changed_fields(node_id: str, a: RunRecord, b: RunRecord) -> Iterator[str]:
    left, right = (encode_node(r.graph[node_id], origins=False) for r in (a, b))
    for name in dict.fromkeys([*left, *right]):
        if left.get(name) != right.get(name):
            yield f"{name} {_short(left.get(name))} → {_short(right.get(name))}"


def _outcome_difference(node_id: str, a: Outcome | None, b: Outcome | None) -> NodeDifference | None:
    if a is None or b is None:
        if a is b:
            return None
        return NodeDifference(node_id, "output", "has no output in the " + ("first run" if a is None else "second run"))
    if a.winners != b.winners:
        return NodeDifference(node_id, "winners", f"branches {a.winners} → {b.winners} decided")
    ids = [() if o.meta is None else o.meta.token_ids for o in (a, b)]
    if a.text == b.text and ids[0] == ids[1] and encode_value(a.value) == encode_value(b.value):
        return None
    token = next((i for i, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1]), None)
    if token is None and ids[0] != ids[1]:
        token = min(map(len, ids))
    at = f" from token {token}" if token is not None else ""
    left, right = (_from_change(o, other) for o, other in ((a, b), (b, a)))
    return NodeDifference(node_id, "output", f"output differs{at}: {left} → {right}", token)


def _from_change(outcome: Outcome, other: Outcome) -> str:
    """The text from a little before the place where it differs."""
    if outcome.text == other.text:
        return _short(outcome.value)
    place = next((i for i, (x, y) in enumerate(zip(outcome.text, other.text, strict=False)) if x != y), 0)
    start = max(0, place - 12)
    return ("…" if start else "") + _short(outcome.text[start:])


def _settings(a: RunRecord, b: RunRecord) -> Iterator[str]:
    pairs: list[tuple[str, Any, Any]] = [("program", a.program, b.program), ("seed", a.seed, b.seed)]
    for group, left, right in (("", a.options, b.options), ("version of ", a.versions, b.versions)):
        pairs += [(group + name, left.get(name), right.get(name)) for name in dict.fromkeys([*left, *right])]
    for name, before, now in pairs:
        if before != now:
            yield f"{name} {before!r} → {now!r}"


def _short(value: object) -> str:
    text = shown(value)
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
