"""Two runs side by side: where they first differ, what else does, and what the second cost more or less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from .codec import encode_node
from .execution import Outcome, Usage
from .outcome_codec import encode_error, encode_value
from .record import RunRecord
from .specs import shown

DifferenceKind = Literal["only in a", "only in b", "node", "error", "output", "winners"]
EXCERPT = 60


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
