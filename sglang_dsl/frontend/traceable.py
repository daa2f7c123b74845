"""What tracing and export need to know of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errors import Origin
from .sites import Sites
from .state import State


class Traceable(Protocol):
    """A program; `program.Program` is one.

    language: "native", or "sglang" for a program in SGLang's style. parameters: names after the state, in order. bound: arguments given by `bind`.
    """

    function: Callable[..., Any]
    name: str
    origin: Origin
    sites: Sites
    asynchronous: bool
    language: str
    parameters: tuple[str, ...]
    bound: dict[str, Any]

    def call(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the body on a state."""
