"""From a model's name to an engine that runs it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING

from ....errors import DslError, EngineClosedError, MissingExtraError, ModelLoadError
from ...supply import loading, locate
from ..interpreted import InterpretedExecutor

if TYPE_CHECKING:
    from ....ir.specs import ConstraintSpec
    from ...engine.config import EngineConfig
    from ...engine.engine import Engine
    from ...model.options import ModelOptions
    from ...sample.masks import Compilation, ConstraintCompiler
    from ...text.protocol import Tokenizer

DEFAULT_MODEL = "smollm2"
_SHOWN = 400  # characters of a library's error that are passed on
_NEEDED = ("torch", "transformers", "tokenizers", "xgrammar", "gguf")


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

    from ...model import settings

    settings.apply()  # before torch is imported, which the modules below do

    with loading(files.name), _no_collection():
        from ...constrain.audit import audit
        from ...engine.engine import Engine
        from ...model.load import load_model
        from ...model.options import ModelOptions
        from ...text.load import load_text
        from .worker import TorchWorker

        text = load_text(files.path, files.fingerprint)
        model = load_model(files.path, options or ModelOptions(), fingerprint=files.fingerprint, keep=True)
        compiler = FirstUse(partial(_grammar_pool, text.tokenizer, model.vocab_size))
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


class FirstUse:
    """A constraint compiler that is made when the first constraint comes: most runs of a small script have none."""

    def __init__(self, make: Callable[[], ConstraintCompiler]) -> None:
        self._make = make
        self._made: ConstraintCompiler | None = None
        self._closed = False
        self._lock = Lock()

    def compile(self, spec: ConstraintSpec) -> Compilation:
        """See `ConstraintCompiler`."""
        with self._lock:
            if self._closed:
                raise EngineClosedError("this worker was closed", hint="open the model again")
            if self._made is None:
                self._made = self._make()
        return self._made.compile(spec)

    def close(self) -> None:
        """See `ConstraintCompiler`."""
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
