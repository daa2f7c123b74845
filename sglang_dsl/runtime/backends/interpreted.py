"""What `local` and `mock` hand to the frontend: an Executor over Targets, and what can be said of prompts before a run.

`preview` is the prompt along a context path before anything has run: exact where the text is known, bounded where it is not.
`seam_difference` says where two neighbouring segments are encoded apart, and what one encoding of both would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from ...errors import RoleError, SpecError
from ...ir.execution import ConstraintReport, Meter, Run, RunSpec, Segment, check_models_allowed, resolve
from ...ir.nodes import Fork, Gen, Node, Plain, Raw, Reference, RoleBegin, RoleEnd, Select, Text
from ...ir.specs import ConstraintSpec
from ..interpret.run import InterpretedRun
from ..interpret.target import Target
from ..text.tokenizer import TextModel, TextPiece, Tokenizer, Turns, with_bos

Encode: TypeAlias = Callable[..., Sequence[int]]  # as `Tokenizer.encode_segment`

SHOWN = "{%s}"  # how a value that does not exist yet is shown


def preview(
    path: Sequence[Node], values: Mapping[str, str], text: TextModel, encode: Encode | None = None
) -> tuple[Segment, ...]:
    """One segment per stretch of text and the node it comes from, the nodes in `path` order.

    A stretch between two seams is encoded as a whole, as a run does it; its ids stand at its last segment's node, so
    that the ids joined are the prompt's. A stretch with unknown parts has no ids: `max_tokens` counts each part alone, a
    value that does not exist yet by the bound of its call.

    Args:
        values: texts of nodes that are known, by id.
        encode: instead of the tokenizer's `encode_segment`: one that remembers, for who asks about many paths.

    Raises:
        RoleError: the template refuses a role.
    """
    draft = _PromptPreview(text, values, encode or text.tokenizer.encode_segment)
    for node in path:
        draft.add(node)
    draft.seam()
    return tuple(draft.segments)


class Previews:
    """Previews of many paths for one text model: what they have in common up to a fork is put together once. Thread-safe."""

    def __init__(self, text: TextModel, encode: Encode) -> None:
        self._text = text
        self._encode = encode
        self._known = _KnownForks({}, {})

    def of(self, path: Sequence[Node], values: Mapping[str, str]) -> tuple[Segment, ...]:
        """The preview of a path, see `preview`."""
        known = self._known
        if values != known.values:
            known = self._known = _KnownForks(dict(values), {})
        nodes = list(path)
        draft, begun = self._begun(nodes, known)
        for place in range(begun, len(nodes)):
            draft.add(nodes[place])
            if isinstance(nodes[place], Fork):
                known.forks[id(nodes[place])] = (nodes[: place + 1], draft.copy())
        draft.seam()
        return tuple(draft.segments)

    def _begun(self, nodes: list[Node], known: _KnownForks) -> tuple[_PromptPreview, int]:
        """The preview of the longest beginning of a path that is known, and how many nodes that are."""
        for place in range(len(nodes) - 1, -1, -1):
            if isinstance(nodes[place], Fork) and (found := known.forks.get(id(nodes[place]))) is not None:
                before, draft = found
                if before == nodes[: place + 1]:
                    return draft.copy(), place + 1
        return _PromptPreview(self._text, known.values, self._encode), 0


class _KnownForks(NamedTuple):
    """What is known under the same values: by the identity of a fork, the path up to it and its preview, which is copied only."""

    values: Mapping[str, str]
    forks: dict[int, tuple[list[Node], _PromptPreview]]


class _PromptPreview:
    """A preview while its path is followed, node by node."""

    def __init__(self, text: TextModel, values: Mapping[str, str], encode: Encode) -> None:
        self._text = text
        self._encode = encode
        self._values = values
        self._bounds: dict[str, int] = {}  # of the calls so far
        self._pending: list[Segment] = []
        self._exact = True
        self._turns = Turns()
        self.segments: list[Segment] = []

    def copy(self) -> _PromptPreview:
        """The same at a seam, to go on apart."""
        copy = _PromptPreview(self._text, self._values, self._encode)
        copy._bounds, copy._turns, copy.segments = dict(self._bounds), self._turns, list(self.segments)
        return copy

    def add(self, node: Node) -> None:
        """Append what a node says."""
        match node:
            case Text(pieces=pieces):
                for piece in pieces:
                    self._say(node, piece)
            case RoleBegin(role=role):
                self._put(node, self._text.template.open_turn(self._turns, role), control=True)
                self._turns = self._turns.opened(role)
            case RoleEnd(role=role):
                if self._turns.closed:
                    raise RoleError(f"a {role!r} turn ends, but no turn is open", origin=node.origin)
                self._put(node, self._text.template.close_turn(self._turns), control=True)
                self._turns = self._turns.ended()
            case Gen() | Select():
                self._call(node)
            case Fork():
                self.seam()

    def seam(self) -> None:
        """End a stretch: its ids stand at its last segment, or, with unknown parts, each part is counted alone."""
        if self._exact and self._pending:
            first = not self.segments
            ids = self._encode(tuple(TextPiece(s.text, control=s.control) for s in self._pending), first=first)
            begun = with_bos(ids, self._text.tokenizer) if first else ids
            self._pending[-1] = replace(self._pending[-1], token_ids=tuple(begun))
        elif self._pending:
            self._pending = [s if s.max_tokens else replace(s, max_tokens=self._size(s)) for s in self._pending]
        self.segments += self._pending
        self._pending, self._exact = [], True

    def _say(self, node: Text, piece: Plain | Raw | Reference) -> None:
        match piece:
            case Plain(said):
                self._put(node, said)
            case Raw(said):
                self._put(node, said, control=True)
            case Reference(node_id, ()) if node_id in self._values:
                self._put(node, self._values[node_id])
            case Reference(node_id):
                self._exact = False
                self._put(node, SHOWN % node_id, bound=self._bounds.get(node_id, 0))

    def _put(self, node: Node, said: str, *, control: bool = False, bound: int = 0) -> None:
        if not said:
            return
        self._pending.append(Segment(node_id=node.id, text=said, max_tokens=bound, control=control))
        self._turns = self._turns.said(said)

    def _call(self, node: Gen | Select) -> None:
        self.seam()
        self._bounds[node.id] = self._bound(node)
        known = self._values.get(node.id)
        if known is None:
            shown = SHOWN % (node.name or node.id)
            self.segments.append(Segment(node_id=node.id, text=shown, max_tokens=self._bounds[node.id]))
        else:
            ids = tuple(self._text.tokenizer.encode(known))
            self.segments.append(Segment(node_id=node.id, text=known, token_ids=ids))
        self._turns = self._turns.said(known or "")

    def _bound(self, node: Gen | Select) -> int:
        if isinstance(node, Gen):
            return node.sampling.most_tokens
        return max((self._count(choice) for choice in node.choices if isinstance(choice, str)), default=0)

    def _size(self, segment: Segment) -> int:
        return len(self._encode((TextPiece(segment.text, control=segment.control),)))

    def _count(self, text: str) -> int:
        return len(self._text.tokenizer.encode(text))


@dataclass(frozen=True, slots=True)
class SeamDifference:
    """The tokens around a seam that would be others if nothing were cut there; common ends are left out."""

    apart: tuple[bytes, ...]
    joint: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"{_show(self.apart)} instead of {_show(self.joint)}"


def seam_difference(
    tokenizer: Tokenizer, before: Sequence[TextPiece], after: Sequence[TextPiece]
) -> SeamDifference | None:
    """How the ids around the seam between two segments differ from those of one encoding; None if they do not.

    "value: " | "Paris"    ->   [" ", "Paris"] instead of [" Paris"]
    """
    apart = tokenizer.encode_segment(before) + tokenizer.encode_segment(after)
    joint = tokenizer.encode_segment([*before, *after])
    if apart == joint:
        return None
    head = _common(apart, joint)
    tail = _common(apart[head:][::-1], joint[head:][::-1])
    return SeamDifference(
        tuple(tokenizer.token_bytes(i) for i in apart[head : len(apart) - tail]),
        tuple(tokenizer.token_bytes(i) for i in joint[head : len(joint) - tail]),
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _show(pieces: Sequence[bytes]) -> str:
    return "[" + ", ".join(repr(piece.decode("utf-8", "backslashreplace")) for piece in pieces) + "]"


REMEMBERED_STRETCHES = 256  # the paths of one graph begin alike, and encoding is most of the work of a preview


@runtime_checkable
class HasTarget(Protocol):
    """A backend that runs can use as a named model."""

    @property
    def target(self) -> Target:
        """Its model."""


class InterpretedExecutor:
    """Implements `ir.execution.Executor` over one default Target and, per run, the named ones of its options.

    Args:
        close: releases what stands behind the target. Called once.
        share_equal: whether equal work within a run is done once.
    """

    def __init__(self, name: str, target: Target, close: Callable[[], None], *, share_equal: bool = True) -> None:
        self.name = name
        self._target = target
        self._share_equal = share_equal
        self._close: list[Callable[[], None]] = [close]
        self._checks: list[Callable[[], None]] = []

    @property
    def target(self) -> Target:
        """The default model."""
        return self._target

    def open(self, spec: RunSpec) -> Run:
        """Begin a run.

        Raises:
            BackendNotFoundError: a named model's backend does not exist.
            SpecError: a named model's backend has no model of its own.
        """
        check_models_allowed(f"opened a run of the backend {self.name!r}")
        targets: dict[str | None, Target] = {None: self._target}
        for alias, backend in spec.options.models.items():
            executor = resolve(backend)
            if not isinstance(executor, HasTarget):
                raise SpecError(
                    f"models[{alias!r}] is the backend {executor.name!r}, which has no model of its own",
                    hint="name a backend such as 'local:smollm2' or a mock",
                )
            targets[alias] = executor.target
        return InterpretedRun(spec, targets, share_equal=self._share_equal)

    def meter(self) -> Meter:
        """Facts of the default model."""
        return TargetMeter(self._target)

    def verify(self) -> None:
        """What a test wants to know at its end: raise where something prepared for it (a reply, a fault) was not used."""
        for check in self._checks:
            check()

    def also_verify(self, check: Callable[[], None]) -> None:
        """Let `verify` call `check`, too."""
        self._checks.append(check)

    def close(self) -> None:
        """Release the model. Idempotent; calls in flight fail."""
        try:
            close = self._close.pop()  # given to one thread only
        except IndexError:
            return
        close()

    def __enter__(self) -> InterpretedExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TargetMeter:
    """Implements `ir.execution.Meter` over a Target's text model."""

    def __init__(self, target: Target) -> None:
        self.model = target.info.model
        self.context_tokens = target.info.context_tokens
        self.kv_bytes_per_token = target.info.kv_bytes_per_token
        self._target = target
        encode = lru_cache(REMEMBERED_STRETCHES)(target.text.tokenizer.encode_segment)
        self._previews = Previews(target.text, encode)

    def render(self, path: Sequence[Node], values: Mapping[str, str]) -> tuple[Segment, ...]:
        """The prompt along a context path, with the texts of nodes that are known (`values`: node id -> text)."""
        return self._previews.of(path, values)

    def count(self, text: str) -> int:
        """Tokens of a plain text on its own."""
        return len(self._target.text.tokenizer.encode(text))

    def seam(self, before: str, after: str) -> str:
        """How the tokens of two texts encoded apart differ from those of one encoding, in words; "" if they do not."""
        found = seam_difference(self._target.text.tokenizer, [TextPiece(before)], [TextPiece(after)])
        return "" if found is None else str(found)

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Forced tokens and findings. Raises ConstraintError where the constraint cannot be used at all."""
        return self._target.audit(constraint)
