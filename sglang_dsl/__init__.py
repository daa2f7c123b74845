"""Prompt programs as Python functions, and a runtime that knows the whole program.

from sglang_dsl import program, gen, user, assistant

@program
def ask(s, question: str):
    s += user(question)
    s += assistant(gen("answer", max_tokens=64))
    return s["answer"]

print(ask.run("Name a metal.").value)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import DslError, Origin
from .frontend.batch import Interrupted
from .frontend.branches import Branches
from .frontend.expressions import Generation, Handle, Joined, Lazy, Selection
from .frontend.primitives import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    image,
    raw,
    role,
    role_begin,
    role_end,
    select,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .frontend.program import Program, program
from .frontend.session import Result, use
from .frontend.state import State
from .frontend.stream import Chunk, Running, Stream
from .frontend.tools import Tool, tool
from .ir.execution import MISSING, Meta, Usage, execute, set_default_backend
from .ir.graph import Graph
from .ir.nodes import Reasoning
from .ir.specs import ConstraintSpec, RunOptions, SamplingSpec

if TYPE_CHECKING:
    from .ir.explain import explain
    from .runtime.backends.local import local

__version__ = "0.1.0"

__all__ = [
    "MISSING", "Branches", "Chunk", "ConstraintSpec", "DslError", "Generation", "Graph", "Handle", "Interrupted",
    "Joined", "Lazy", "Meta", "Origin", "Program", "Reasoning", "Result", "RunOptions", "Running", "SamplingSpec",
    "Selection", "State", "Stream", "Tool", "Usage", "assistant", "assistant_begin", "assistant_end", "execute",
    "explain", "gen", "image", "local", "program", "raw", "role", "role_begin", "role_end", "select", "set_default_backend", "system",
    "system_begin", "system_end", "tool", "use", "user", "user_begin", "user_end",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`explain` pulls in networkx, and `local` the engine's options, so they are loaded when first asked for."""
    if name == "local":
        from .runtime.backends.local import local

        return local
    if name == "explain":
        from .ir.explain import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
