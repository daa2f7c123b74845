"""Run options of the surroundings: `with use(...)` reaches all that the library starts, and what copies the context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields as dataclass_fields
from typing import Any

from ..errors import SpecError
from ..ir.specs import SAMPLING_NAMES, RunOptions

_DEFAULT = RunOptions()
_SAMPLING = frozenset(SAMPLING_NAMES) - {f.name for f in dataclass_fields(RunOptions)}
_current: ContextVar[RunOptions] = ContextVar("sglang_dsl.options", default=_DEFAULT)


@contextmanager
def use(options: RunOptions | None = None, **fields: Any) -> Iterator[RunOptions]:
    """Options for every run inside the block: `with use(backend="mock", seed=7): ...`.

    Give a RunOptions or its fields by name, not both. What a run states itself wins; inner blocks win over outer ones. The
    options of `SamplingSpec` may be given by name too, for every `gen` that leaves them out: `with use(temperature=0): ...`.

    They are a context variable. They reach branches, tools, validators, `start`, `stream`, batches and asyncio tasks; a thread
    that you start yourself begins without them, unless it runs in a copy of the context
    (`executor.submit(contextvars.copy_context().run, function)`). `set_default_backend` reaches all threads.
    """
    if options is not None and fields:
        raise SpecError("use() got a RunOptions and fields by name", hint="put the fields into the RunOptions")
    sampling = {name: fields.pop(name) for name in list(fields) if name in _SAMPLING}
    if sampling:
        fields["sampling"] = {**fields.get("sampling", {}), **sampling}
    token = _current.set(settled(options if options is not None else RunOptions(**fields)))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def settled(options: RunOptions | None) -> RunOptions:
    """`options` over those of the surroundings."""
    outer = _current.get()
    if options is None:
        return outer
    if not isinstance(options, RunOptions):
        raise SpecError(f"options={options!r} is a {type(options).__name__}", hint="give options=RunOptions(...)")
    return options if outer is _DEFAULT else options.over(outer)
