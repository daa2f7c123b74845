"""The kinds of nodes that need no model: texts, roles, inputs, returns, and breaks, which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...errors import ContextLengthError, DslError, GraphError, RoleError, RunError
from ...ir.execution import Outcome
from ...ir.expressions import is_data
from ...ir.nodes import (
    Break,
    Constant,
    Input,
    Piece,
    Plain,
    Raw,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Text,
    is_role_word,
)
from ...ir.operations import text_of
from ...ir.semantics import Lookup, evaluate, misfit
from ...ir.specs import shown
from ..text.tokenizer import MEASURED_FIRST, TextPiece
from .entries import Entry
from .machine import Machine
from .tools import UserCalls, keep_context
from .user_code import UserCallResult


def rendered(piece: Piece, lookup: Lookup) -> TextPiece:
    """A piece of a Text node as text. Only Raw may hold control tokens."""
    match piece:
        case Plain(text):
            return TextPiece(text)
        case Raw(text):
            return TextPiece(text, control=True)
        case Reference():
            return TextPiece(text_of(evaluate(piece, lookup)))


def check_text(machine: Machine, entry: Entry) -> None:
    """A text that mentions values may have to ask objects of the program how they read. One that no model of the run can take is
    refused. Raises ContextLengthError.
    """
    if not isinstance(entry.node, Text):
        return
    for piece in entry.node.pieces:
        if type(piece) is Reference:
            keep_context(entry)
        elif type(piece) is Plain and len(piece.text) >= MEASURED_FIRST:
            _check_fits_one(machine, piece.text)


def _check_fits_one(machine: Machine, text: str) -> None:
    error: ContextLengthError | None = None
    for model in machine.models.values():
        try:
            model.prompter.check_fits(text)
        except ContextLengthError as refused:
            error = error or refused
        else:
            return
    if error is not None:
        raise error


def begin_text(machine: Machine, entry: Entry) -> None:
    """Everything it mentions is known. How an object reads is user code (a serializer), so that is called like all of it."""
    text = entry.node
    if not isinstance(text, Text):
        return
    written = [piece for piece in text.pieces if not isinstance(piece, Reference)]
    if len(written) == len(text.pieces):
        _finish_text(machine, entry, tuple(TextPiece(piece.text, isinstance(piece, Raw)) for piece in written))
        return
    lookup = machine.lookup(entry)
    if all(is_data(lookup(piece.node_id)) for piece in text.pieces if type(piece) is Reference):
        _finish_text(machine, entry, _rendered_all(text, lookup))
        return

    def answered(answers: Sequence[UserCallResult]) -> None:
        pieces, error, said = answers[0]
        if isinstance(error, DslError):
            raise error
        if error is not None:
            raise RunError(f"what the text mentions cannot be written as JSON: it raised {said}") from error
        _finish_text(machine, entry, pieces)

    UserCalls(machine, entry, [partial(_rendered_all, text, lookup)], answered, what=f"the text {entry.id!r}").begin()


def _rendered_all(text: Text, lookup: Lookup) -> tuple[TextPiece, ...]:
    return tuple(rendered(piece, lookup) for piece in text.pieces)


def _finish_text(machine: Machine, entry: Entry, pieces: tuple[TextPiece, ...]) -> None:
    entry.pieces = pieces
    text = "".join(piece.text for piece in pieces)
    machine.finish(entry, Outcome(value=text, text=text))


def check_role(machine: Machine, entry: Entry) -> None:
    """Ask the template at the role statement, even where the text before it is not known yet. Raises RoleError."""
    if not isinstance(entry.node, RoleBegin):
        return
    if not is_role_word(entry.node.role):
        raise RoleError(
            f"a role is one word that the model's template knows, not {shown(entry.node.role)}",
            hint="what a user or a tool wrote is content, never a role",
        )
    if entry.context is None or entry.context.placed:
        _turn(machine, entry)
        return
    before = entry.context.turns.ended() if entry.context.turns else entry.context.turns
    machine.default.target.text.template.open_turn(before, entry.node.role)


def begin_role(machine: Machine, entry: Entry) -> None:
    """The template says how the turn opens or closes. Raises RoleError."""
    machine.finish(entry, Outcome(text=_turn(machine, entry)))


def _turn(machine: Machine, entry: Entry) -> str:
    model = machine.default
    prompt = model.prompt_after(entry.context.anchor if entry.context else None)
    match entry.node:
        case RoleBegin(role=role):
            return model.prompter.open_turn(prompt, role)[1]
        case RoleEnd(role=role):
            return model.prompter.close_turn(prompt, role)[1]
    raise TypeError(f"a {entry.node.kind} node is no role")


def check_input(machine: Machine, entry: Entry) -> None:
    """Raise GraphError if the run was given no such argument, or one of another structure."""
    if not isinstance(entry.node, Input) or entry.node.id in entry.scope.bound:
        return
    if entry.node.name not in machine.spec.arguments:
        given = ", ".join(sorted(machine.spec.arguments)) or "none"
        raise GraphError(
            f"input {entry.node.name!r} has no value; arguments given: {given}",
            hint=f"pass RunSpec(arguments={{{entry.node.name!r}: ...}})",
            origin=entry.node.origin,
        )
    if wrong := misfit(entry.node.structure, machine.spec.arguments[entry.node.name], entry.node.name):
        raise GraphError(
            f"the graph was traced with an argument of another structure: {wrong}",
            hint="trace the program again with arguments like these",
            origin=entry.node.origin,
        )


def begin_input(machine: Machine, entry: Entry) -> None:
    """Its value comes from the arguments, or from the region it stands in."""
    if isinstance(entry.node, Input):
        bound = entry.scope.bound
        value = bound[entry.node.id] if entry.node.id in bound else machine.spec.arguments[entry.node.name]
        machine.finish(entry, Outcome(value=value))


def begin_return(machine: Machine, entry: Entry) -> None:
    """Everything it mentions is known."""
    if isinstance(entry.node, Return):
        value = entry.node.value
        known = value.value if isinstance(value, Constant) else evaluate(value, machine.lookup(entry))
        machine.finish(entry, Outcome(value=known))


def refuse_break(machine: Machine, entry: Entry) -> None:
    """Raise GraphError: nobody knows what follows a Break."""
    if isinstance(entry.node, Break):
        raise GraphError(
            f"node {entry.id!r} is a break: {entry.node.reason}; a graph with a break cannot be executed",
            hint="run the program itself, or rewrite this line so that it can be traced",
            origin=entry.node.origin,
        )
