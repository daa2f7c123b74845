"""Chat templates written in Python: for models that bring none, and for the mock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...errors import RoleError
from ...ir.specs import shown
from .pieces import TURN_END, TURN_START
from .protocol import Turn

ROLES = frozenset({"system", "user", "assistant", "tool"})


def check_known(role: str, known: Collection[str], place: int) -> None:
    """Raise RoleError unless `role`, of the message at `place`, is one of those a template knows."""
    if role not in known:
        raise RoleError(
            f"the template has no role {shown(role)} (message {place}); it has {', '.join(sorted(known))}",
            hint="use one of these roles",
        )


class LabelTemplate:
    """For models that bring no template: `User: `, content, an empty line. The roles of `ROLES`, in any order.

    A base model does not end its turns: give `stop` or a constraint.
    """

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`. Raises RoleError for a role it does not know."""
        check_known(role, ROLES, len(turns))
        return f"{role.capitalize()}: "

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        return "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMlTemplate:
    """ChatML: `<|im_start|>role` newline, content, `<|im_end|>` newline.

    Args:
        roles: the roles it accepts.
        alternate: refuse all but user, assistant, user, ... (as Gemma's and Mistral's first templates do).
        default_system: content of a system turn put in front when the first turn is another.
    """

    roles: frozenset[str] = ROLES
    alternate: bool = False
    default_system: str | None = None

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`. Raises RoleError for a role or an order it was told to refuse."""
        self._check(len(turns), role)
        return self._front(turns, role) + f"{TURN_START}{role}\n"

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        return f"{TURN_END}\n"

    def _front(self, turns: Sequence[Turn], role: str) -> str:
        if turns or role == "system" or self.default_system is None:
            return ""
        return f"{TURN_START}system\n{self.default_system}{TURN_END}\n"

    def _check(self, index: int, role: str) -> None:
        check_known(role, self.roles, index)
        if self.alternate and role != ("user", "assistant")[index % 2]:
            raise RoleError(
                f"the template refuses role {role!r} as message {index}: "
                "conversation roles must alternate user/assistant/user/assistant/...",
                hint="merge neighbouring turns of one role, and put system text into the first user turn",
            )
