"""SGLang's own frontend names, over ours: `import sglang_dsl.sglang as sgl` runs a program written for it.

The semantics are SGLang's where they are sound. Where its behaviour loses work, hangs or goes wrong, this does the right
thing instead; `docs/from_sglang.md` lists every difference.
"""

from __future__ import annotations

from ...ir.execution import set_default_backend
from .backends import (
    Anthropic,
    Crusoe,
    Engine,
    LiteLLM,
    OpenAI,
    Runtime,
    RuntimeEndpoint,
    ServerArgs,
    VertexAI,
    flush_cache,
    get_server_info,
)
from .calls import (
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
from .function import SglFunction, function
from .states import ProgramState, ProgramStateGroup

__all__ = [
    "Anthropic", "Crusoe", "Engine", "LiteLLM", "OpenAI", "ProgramState", "ProgramStateGroup", "Runtime",
    "RuntimeEndpoint", "ServerArgs", "SglFunction", "VertexAI", "assistant", "assistant_begin", "assistant_end",
    "flush_cache", "function", "gen", "gen_int", "gen_string", "get_server_info", "greedy_token_selection", "image",
    "select", "separate_reasoning", "set_default_backend", "system", "system_begin", "system_end",
    "token_length_normalized", "unconditional_likelihood_normalized", "user", "user_begin", "user_end", "video",
]  # fmt: skip
