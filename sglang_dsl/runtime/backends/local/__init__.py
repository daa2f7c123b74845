"""The engine on a model in this process: from a model's name to an engine that runs it, and in words what stands in the way of
running models here (`report`). Importing this package loads no torch; opening a model does.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING, Any

from ....errors import DslError, EngineClosedError, MissingExtraError, ModelLoadError, SpecError
from ...model.options import prepare_process
from ...supply import cache_folder, list_models, loading, locate
from ..interpreted import InterpretedExecutor

if TYPE_CHECKING:
    from ....ir.execution import Executor
    from ....ir.specs import ConstraintSpec
    from ...engine.border import EngineConfig
    from ...engine.engine import Engine
    from ...model.options import ModelOptions
    from ...sample.sampler import Compilation, ConstraintCompiler
    from ...text.tokenizer import Tokenizer


DEFAULT_MODEL = "smollm2"
_SHOWN = 400  # characters of a library's error that are passed on
_NEEDED = ("torch", "transformers", "tokenizers", "xgrammar", "gguf")


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
    return open_model(argument)


def open_model(
    name: str | PathLike[str] = "", options: ModelOptions | None = None, config: EngineConfig | None = None
) -> InterpretedExecutor:
    """An executor on the model `name`: of the catalogue, a `.gguf` file or a Hugging Face folder; "" is the default model.

    Raises:
        MissingExtraError: torch and its companions are not installed.
        ModelNotFoundError: no such model, or it was not pulled yet.
        ModelLoadError, SelfCheckError: its files are damaged or it cannot be run here.
    """
    engine = open_engine(name, options, config)
    shown = engine.info.model
    return InterpretedExecutor(f"local:{shown}", engine, engine.close)


def open_engine(
    name: str | PathLike[str] = "", options: ModelOptions | None = None, config: EngineConfig | None = None
) -> Engine:
    """The engine itself, for token-in token-out use. Errors as `open_model`."""
    _need_extra()
    with _named_errors(os.fspath(name) or DEFAULT_MODEL):
        return _opened(name, options, config)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Whatever opening meets is one of this project's errors: files hold anything, and libraries raise anything."""
    try:
        yield
    except DslError:
        raise
    except PermissionError as error:
        raise ModelLoadError(f"{error.filename or name} may not be read", hint="change its permissions") from error
    except Exception as error:
        said = " ".join(str(error).split())[:_SHOWN]
        raise ModelLoadError(
            f"{name} cannot be opened: {type(error).__name__}: {said}",
            hint="correct what is named in its files, or download the model again",
        ) from error


def _opened(name: str | PathLike[str], options: ModelOptions | None, config: EngineConfig | None) -> Engine:
    files = locate(name or DEFAULT_MODEL)

    prepare_process()  # before torch is imported, which the modules below do

    with loading(files.name), _no_collection():
        from ...constrain.compile import audit
        from ...engine.engine import Engine
        from ...model.load import load_model
        from ...model.options import ModelOptions
        from ...text.load import load_text
        from .worker import TorchWorker

        text = load_text(files.path, files.fingerprint)
        model = load_model(files.path, options or ModelOptions(), fingerprint=files.fingerprint, keep=True)
        compiler = LazyConstraintCompiler(partial(_grammar_pool, text.tokenizer, model.vocab_size))
        worker = TorchWorker(model, text.tokenizer, compiler, name=files.name)
        return Engine(worker, text, config=config, audit=audit)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Importing torch and transformers makes many objects and no garbage: looking for some would cost a tenth of the time."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _grammar_pool(tokenizer: Tokenizer, vocab_size: int) -> ConstraintCompiler:
    from ...sample.grammar import GrammarPool

    return GrammarPool(tokenizer, vocab_size)


class LazyConstraintCompiler:
    """A constraint compiler that is made when the first constraint comes: most runs of a small script have none."""

    def __init__(self, make: Callable[[], ConstraintCompiler]) -> None:
        self._make = make
        self._made: ConstraintCompiler | None = None
        self._closed = False
        self._lock = Lock()

    def compile(self, spec: ConstraintSpec) -> Compilation:
        """Begin, or take what was begun for an equal spec."""
        with self._lock:
            if self._closed:
                raise EngineClosedError("this worker was closed", hint="open the model again")
            if self._made is None:
                self._made = self._make()
        return self._made.compile(spec)

    def close(self) -> None:
        """End its threads. Idempotent."""
        with self._lock:
            self._closed = True
        if self._made is not None:
            self._made.close()


def missing_parts() -> list[str]:
    """Packages of the engine extra that are not installed."""
    return [name for name in _NEEDED if find_spec(name) is None]


def _need_extra() -> None:
    missing = missing_parts()
    if missing:
        raise MissingExtraError(
            f"running a model in this process needs {', '.join(missing)}", hint="pip install 'sglang-dsl[engine]'"
        )


_PARTS = ("torch", "transformers", "tokenizers", "xgrammar", "gguf", "triton")


def report() -> str:
    """Installed parts, settings applied to this process, models at hand, and what is missing for a GPU."""
    missing = missing_parts()
    lines = [f"python        {platform.python_version()} on {platform.machine()}"]
    lines += [f"{name:<14}{_version(name)}" for name in _PARTS]
    lines += _host_lines()
    lines += _model_lines()
    if missing:
        lines.append(f"missing       {', '.join(missing)}: pip install 'sglang-dsl[engine]'")
    else:
        lines += _device_lines()
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _host_lines() -> list[str]:
    host = prepare_process()
    kept = "keeps freed memory" if host.allocator_keeps_memory else "left as it is"
    lines = [
        f"threads       {host.threads} of {host.physical_cores} physical cores (OMP_NUM_THREADS overrules)",
        f"allocator     {kept}",
        f"waiting       OMP_WAIT_POLICY={host.wait_policy}",
    ]
    return lines + [f"note          {note}" for note in host.notes]


def _model_lines() -> list[str]:
    lines = [f"models        {cache_folder()}"]
    for model in list_models():
        where = str(model.path) if model.path else f"not here: sglang-dsl models pull {model.entry.name}"
        lines.append(f"  {model.entry.name:<12}{where}")
    return lines


def _device_lines() -> list[str]:
    import torch

    from ...model.load import computes_bfloat16

    weights = "bfloat16" if computes_bfloat16() else "float32 (no bfloat16 instructions)"
    lines = [f"cpu weights   {weights}"]
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        lines.append(f"gpu           {torch.cuda.get_device_name()}, {free >> 20:,} of {total >> 20:,} MiB free")
    elif torch.version.cuda is None:
        lines.append("gpu           none: this torch was built without CUDA (https://pytorch.org/get-started)")
    else:
        lines.append("gpu           none: torch has CUDA, but sees no device (driver, or CUDA_VISIBLE_DEVICES)")
    return lines
