"""What can be appended to a state: immutable expressions, combined with `+`, appended with `s += ...`.

An expression is inert until it is appended; each append makes new nodes of it, also of the same object. Expressions
hash and compare by identity, so that a state can be asked for the value of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from ..errors import ProgramError
from ..ir.nodes import Fork, Gen, Join, Node, Piece, Raw, Reference, Select
from ..ir.specs import SamplingSpec
from .bindings import Bound, Convert, Gathered
from .call_sites import caller_origin

T_co = TypeVar("T_co", covariant=True)


class Draft(Protocol):
    """One statement being turned into nodes; what an expression writes itself into (`drafting.Statement`)."""

    def add(self, item: Any) -> None:
        """Write a string, an expression, or a list or tuple of them."""

    def say(self, piece: Piece) -> None:
        """Add a piece of text."""

    def push(self, kind: type[Node], **fields: Any) -> str:
        """Add a node to the context path. Returns its id."""

    def push_made(self, kind: type[Node], fields: dict[str, Any]) -> str:
        """`push` of fields that are there as a dict already."""

    def push_aside(self, kind: type[Node], *, context: str, branch: int, **fields: Any) -> str:
        """Add a node that starts branch `branch` of the fork `context`. Returns its id."""

    def bind(self, handle: Handle[Any], bound: Bound) -> None:
        """Make a handle, and its name, stand for a value."""

    def sampled(self, own: SamplingSpec, given: frozenset[str]) -> SamplingSpec:
        """How a call samples: as it says itself in `given`, in all else as the run says."""

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Make a Python callable known to the run. Returns the key that names it."""

    def open_role(self, role: str) -> None:
        """Begin a turn. Raises RoleError inside another."""

    def close_role(self, role: str) -> None:
        """End the turn. Raises RoleError unless that role is open."""

    def choice(self, item: str | Mention) -> str | Reference:
        """A choice of a select."""

    def refuse_image(self, source: object) -> NoReturn:
        """Say that this backend takes no images."""


class Expression:
    """Base of what `s += ...` takes besides plain strings."""

    __slots__ = ()

    def write(self, draft: Draft) -> None:
        """Add this expression's nodes and pieces to a statement that is being drafted."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Chain:
        return Chain((self, *other.parts) if type(other) is Chain else (self, other))

    def __radd__(self, other: Any) -> Chain:
        return Chain((other, self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression):
            return self is other
        raise ProgramError(
            f"{self!r} was compared with {other!r}, but it has no value",
            hint="append it, then compare s[...]",
            origin=caller_origin(),
        )

    __hash__ = object.__hash__

    def __str__(self) -> str:
        raise ProgramError(
            f"{self!r} was turned into a string, but it has no text before the model has run",
            hint='append it: s += "text" + gen(...); afterwards s[name] is its text',
            origin=caller_origin(),
        )

    def __format__(self, spec: str) -> str:
        return str(self)

    def __bool__(self) -> NoReturn:
        raise ProgramError(
            f"{self!r} was used as a condition, but it has no value",
            hint="append it, then read s[...]",
            origin=caller_origin(),
        )

    def __iter__(self) -> NoReturn:
        raise ProgramError(f"{self!r} cannot be iterated", hint="append it, then read s[...]", origin=caller_origin())


class Chain(Expression):
    """Expressions one after the other; what `+` makes. Flat, so that long sums do not nest."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __add__(self, other: Any) -> Chain:
        return Chain((*self.parts, *other.parts) if type(other) is Chain else (*self.parts, other))

    def __radd__(self, other: Any) -> Chain:
        return Chain((other, *self.parts))

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    def write(self, draft: Draft) -> None:
        """Each part in order."""
        for part in self.parts:
            draft.add(part)


class RawText(Expression):
    """Text tokenized with control tokens on; made by `raw(...)` only."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"raw({self.text!r})"

    def write(self, draft: Draft) -> None:
        """One raw piece."""
        draft.say(Raw(self.text))


class Mention(Expression):
    """The value of something appended earlier, without waiting for it; made by `s.ref(x)`."""

    __slots__ = ("bound", "label", "pieces")

    def __init__(self, pieces: tuple[Piece, ...], label: str, bound: Bound | None = None) -> None:
        self.pieces = pieces
        self.label = label
        self.bound = bound  # what is mentioned, where it is one value

    def __repr__(self) -> str:
        return f"ref({self.label})"

    def write(self, draft: Draft) -> None:
        """Its pieces."""
        for piece in self.pieces:
            draft.say(piece)


class Handle(Expression, Generic[T_co]):
    """A call that binds a value: append it with `s += handle`, read it with `s[handle]`. T is the value's type.

    name: under which the value can be read too, or None.
    """

    __slots__ = ("name",)

    name: str | None


class Generation(Handle[T_co]):
    """A model call that writes text; made by `gen(...)`."""

    __slots__ = ("check", "convert", "fields", "given", "n")

    def __init__(
        self,
        name: str | None,
        fields: dict[str, Any],
        *,
        convert: Convert | None,
        check: tuple[str, Callable[..., Any]] | None,
        n: int | None,
        given: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.given = given  # names of the sampling options that were not left out
        self.fields = fields  # of the Gen node, ready made
        self.convert = convert
        self.check = check
        self.n = n

    def __repr__(self) -> str:
        return f"gen({self.name!r})" if self.name else "gen()"

    def write(self, draft: Draft) -> None:
        """One Gen; for n samples a Fork, n Gens and a Join."""
        fields = self.fields
        sampling = draft.sampled(fields["sampling"], self.given)
        if sampling is not fields["sampling"]:
            fields = {**fields, "sampling": sampling}
        if self.check is not None:
            fields = {**fields, "validator": draft.register(*self.check)}
        if self.n is None:
            draft.bind(self, Bound(draft.push_made(Gen, fields), self.convert, self, checked=self.check is not None))
        else:
            draft.bind(self, self._samples(draft, fields, self.n))

    def _samples(self, draft: Draft, fields: dict[str, Any], n: int) -> Gathered:
        fork_id = draft.push(Fork, size=n)
        samples = tuple(draft.push_aside(Gen, context=fork_id, branch=i, sample=i, **fields) for i in range(n))
        join_id = draft.push(
            Join, fork=fork_id, name=self.name, tips=samples, values=tuple(Reference(node_id) for node_id in samples)
        )
        return Gathered(
            join_id,
            [Bound(node_id, self.convert, checked=self.check is not None) for node_id in samples],
            "all",
            label=self,
        )


class Selection(Handle[T_co]):
    """The best of several texts under the model; made by `select(...)`."""

    __slots__ = ("choices", "convert", "method", "model")

    def __init__(
        self,
        name: str | None,
        choices: tuple[str | Mention, ...],
        *,
        method: str,
        model: str | None,
        convert: Convert | None = None,
    ) -> None:
        self.name = name
        self.convert = convert
        self.choices = choices
        self.method = method
        self.model = model

    def __repr__(self) -> str:
        return f"select({self.name!r}, ...)"

    def write(self, draft: Draft) -> None:
        """One Select."""
        choices = tuple(draft.choice(c) for c in self.choices)
        node_id = draft.push(Select, name=self.name, choices=choices, method=self.method, model=self.model)
        draft.bind(self, Bound(node_id, self.convert, self))


class Turn(Expression):
    """A whole turn: role, content, end of role."""

    __slots__ = ("content", "role")

    def __init__(self, role: str, content: tuple[Any, ...]) -> None:
        self.role = role
        self.content = content

    def __repr__(self) -> str:
        return f"{self.role}({', '.join(map(repr, self.content))})"

    def write(self, draft: Draft) -> None:
        """RoleBegin, the content, RoleEnd."""
        draft.open_role(self.role)
        for part in self.content:
            draft.add(part)
        draft.close_role(self.role)


class TurnBegin(Expression):
    """The opening of a turn on its own; closed by the matching end."""

    __slots__ = ("role",)

    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"role_begin({self.role!r})"

    def write(self, draft: Draft) -> None:
        """One RoleBegin."""
        draft.open_role(self.role)


class TurnEnd(Expression):
    """The end of a turn opened before."""

    __slots__ = ("role",)

    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"role_end({self.role!r})"

    def write(self, draft: Draft) -> None:
        """One RoleEnd."""
        draft.close_role(self.role)


class Picture(Expression):
    """An image. No backend of this version takes one: appending it says so by name."""

    __slots__ = ("source",)

    def __init__(self, source: object) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"image({self.source!r})"

    def write(self, draft: Draft) -> None:
        """Refuses."""
        draft.refuse_image(self.source)
