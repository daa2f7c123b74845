"""Backends by SGLang's names."""

from __future__ import annotations

from typing import Any

from ...errors import BackendNotFoundError
from ...ir.execution import Executor

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
