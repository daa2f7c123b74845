"""SGLang's own frontend names, over ours: `import sglang_dsl.sglang as sgl` runs a program written for it.

The semantics are SGLang's where they are sound. Where its behaviour loses work, hangs or goes wrong, this does the right
thing instead; `docs/from_sglang.md` lists every difference.
"""

from __future__ import annotations

from typing import Any

from .errors import BackendNotFoundError
from .frontend.sglang_compat.calls import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
    user_begin,
    user_end,
    video,
)
from .frontend.sglang_compat.programs import ProgramState, ProgramStateGroup, SglFunction, function
from .ir.execution import Executor, set_default_backend

Backend = str | Executor | None


class _Later:
    """A backend of SGLang's that this version does not have: naming it is fine, making one says what to use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise BackendNotFoundError(
            f"{type(self).__name__} is a remote backend, and this version runs models in the process only",
            hint="leave it out, or set_default_backend('local:smollm2')",
        )


class RuntimeEndpoint(_Later):
    """SGLang's HTTP client."""


class Runtime(_Later):
    """SGLang's server process."""


class OpenAI(_Later):
    """OpenAI's API."""


class Anthropic(_Later):
    """Anthropic's API."""


class LiteLLM(_Later):
    """LiteLLM's API."""


class VertexAI(_Later):
    """Vertex AI's API."""


class Crusoe(_Later):
    """Crusoe's API."""


class Engine(_Later):
    """SGLang's engine."""


class ServerArgs(_Later):
    """SGLang's server options."""


def flush_cache(backend: Backend = None) -> bool:
    """Whether a cache was emptied. The embedded engine evicts by itself, so there is nothing to flush by hand."""
    return False


def get_server_info(backend: Backend = None) -> dict[str, Any] | None:
    """None: there is no server."""
    return None


__all__ = [
    "Anthropic", "Crusoe", "Engine", "LiteLLM", "OpenAI", "ProgramState", "ProgramStateGroup", "Runtime",
    "RuntimeEndpoint", "ServerArgs", "SglFunction", "VertexAI", "assistant", "assistant_begin", "assistant_end",
    "flush_cache", "function", "gen", "gen_int", "gen_string", "get_server_info", "greedy_token_selection", "image",
    "select", "separate_reasoning", "set_default_backend", "system", "system_begin", "system_end",
    "token_length_normalized", "unconditional_likelihood_normalized", "user", "user_begin", "user_end", "video",
]  # fmt: skip
