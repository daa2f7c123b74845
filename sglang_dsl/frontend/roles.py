"""Turns of a conversation. What a turn's markers are is a fact of the model's template, not decided here.

s += user("Name a metal.")                  a whole turn
with s.assistant(): s += gen("metal")       the with-form, closed also where the block raises
s += assistant_begin() ... s += assistant_end()
"""

from __future__ import annotations

from typing import Any

from ..errors import RoleError
from .expressions import Chain, Turn, TurnBegin, TurnEnd
from .sites import caller_origin


def system(*content: Any) -> Turn:
    """A system turn of texts and calls."""
    return _turn("system", content)


def user(*content: Any) -> Turn:
    """A user turn of texts and calls."""
    return _turn("user", content)


def assistant(*content: Any) -> Turn:
    """An assistant turn of texts and calls: `s += assistant("It is ", gen("metal"))`."""
    return _turn("assistant", content)


def role(name: str, *content: Any) -> Turn:
    """A turn of any role that the model's template knows, such as "tool"."""
    return _turn(name, content)


def role_begin(name: str) -> TurnBegin:
    """Open a turn of any role."""
    return TurnBegin(name)


def role_end(name: str) -> TurnEnd:
    """Close the open turn of this role."""
    return TurnEnd(name)


def system_begin() -> TurnBegin:
    """Open a system turn."""
    return TurnBegin("system")


def system_end() -> TurnEnd:
    """Close the system turn."""
    return TurnEnd("system")


def user_begin() -> TurnBegin:
    """Open a user turn."""
    return TurnBegin("user")


def user_end() -> TurnEnd:
    """Close the user turn."""
    return TurnEnd("user")


def assistant_begin() -> TurnBegin:
    """Open an assistant turn: what follows, also in branches, continues it."""
    return TurnBegin("assistant")


def assistant_end() -> TurnEnd:
    """Close the assistant turn."""
    return TurnEnd("assistant")


def _turn(name: str, content: tuple[Any, ...]) -> Turn:
    if not isinstance(name, str) or not name:
        raise RoleError(f"a role is named by a string, not {name!r}", hint='role("tool", ...)', origin=caller_origin())
    for part in content:
        for item in part.parts if isinstance(part, Chain) else (part,):
            if isinstance(item, (Turn, TurnBegin, TurnEnd)):
                raise RoleError(
                    f"{item!r} stands inside a {name!r} turn",
                    hint="turns do not nest: append one after the other",
                    origin=caller_origin(),
                )
    return Turn(name, content)
