"""The engine on a model in this process. Importing this package loads no torch; `open_local` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....ir.execution import Executor


def open_local(argument: str) -> Executor:
    """The executor behind `backend="local:argument"`: a model of the catalogue, a `.gguf` file or a Hugging Face folder.

    Raises:
        MissingExtraError: torch and its companions are not installed.
        ModelNotFoundError, ModelLoadError: see runtime/supply and runtime/model.
    """
    from .opening import open_model

    return open_model(argument)
