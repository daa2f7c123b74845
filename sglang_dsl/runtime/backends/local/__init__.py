"""The engine on a model in this process. Importing this package loads no torch; `open_local` does."""

from __future__ import annotations

from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any

from ....errors import SpecError

if TYPE_CHECKING:
    from ....ir.execution import Executor
    from ..interpreted import InterpretedExecutor


def local(name: str | PathLike[str] = "", **options: Any) -> InterpretedExecutor:
    """A model of the catalogue, a `.gguf` file or a Hugging Face folder, opened with options, for `backend=` and `models=`.

        with local("smollm2", batch_invariant=True, kv_bytes=2**28) as backend:
            prog.run(..., options=RunOptions(backend=backend))

    Options are those of `ModelOptions` and of `EngineConfig`, by name. The model is this executor's own: `backend="local:smollm2"`
    is another. Close it, or leave its `with`, to free the memory.

    Raises:
        SpecError: an option that neither has, or a value outside its range. Else what `open_local` raises.
    """
    from ...engine.border import EngineConfig
    from ...model.options import ModelOptions
    from .opening import open_model

    of_model, of_engine = ({field.name for field in fields(kind)} for kind in (ModelOptions, EngineConfig))
    unknown = [option for option in options if option not in of_model | of_engine]
    if unknown:
        raise SpecError(
            f"local() has no option {unknown[0]!r}", hint=f"one of {', '.join(sorted(of_model | of_engine))}"
        )
    config = EngineConfig(**{key: value for key, value in options.items() if key in of_engine})
    return open_model(name, ModelOptions(**{key: v for key, v in options.items() if key in of_model}), config)


def open_local(argument: str) -> Executor:
    """The executor behind `backend="local:argument"`: a model of the catalogue, a `.gguf` file or a Hugging Face folder.

    Raises:
        MissingExtraError: torch and its companions are not installed.
        ModelNotFoundError, ModelLoadError: see runtime/supply and runtime/model.
    """
    from .opening import open_model

    return open_model(argument)
