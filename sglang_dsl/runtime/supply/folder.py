"""Where models are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "SGLANG_DSL_CACHE"


def cache_folder() -> Path:
    """`$SGLANG_DSL_CACHE`, else `$XDG_CACHE_HOME/sglang-dsl`, else `~/.cache/sglang-dsl`. It may not exist yet."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-dsl"


def model_folder(name: str) -> Path:
    """The folder of a catalogue model."""
    return cache_folder() / "models" / name
