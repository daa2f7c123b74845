"""Run options of the surroundings: `with use(...)` reaches all that the library starts, and what copies the context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from typing import Any, Unpack

from ..errors import SpecError
from ..ir.specs import SAMPLING_NAMES, Backend, RunOptions, SamplingOptions

_DEFAULT = RunOptions()
_SAMPLING = frozenset(SAMPLING_NAMES) - {f.name for f in dataclass_fields(RunOptions)}
_current: ContextVar[RunOptions] = ContextVar("sglang_dsl.options", default=_DEFAULT)


class UseOptions(SamplingOptions, total=False):
    """What `use` takes by name: the fields of RunOptions, and those of SamplingSpec."""

    backend: str | Backend | None
    models: Mapping[str, str | Backend]
    namespace: str
    deadline_s: float | None
    priority: int
    token_budget: int | None
    max_depth: int
    sampling: Mapping[str, Any]


@contextmanager
def use(options: RunOptions | None = None, **fields: Unpack[UseOptions]) -> Iterator[RunOptions]:
    """Options for every run inside the block: `with use(backend="mock", seed=7): ...`.

    Give a RunOptions or its fields by name, not both. What a run states itself wins; inner blocks win over outer ones. The
    options of `SamplingSpec` may be given by name too, for every `gen` that leaves them out: `with use(temperature=0): ...`.

    They are a context variable. They reach branches, tools, validators, `start`, `stream`, batches and asyncio tasks; a thread
    that you start yourself begins without them, unless it runs in a copy of the context
    (`executor.submit(contextvars.copy_context().run, function)`). `set_default_backend` reaches all threads.
    """
    if options is not None and fields:
        raise SpecError("use() got a RunOptions and fields by name", hint="put the fields into the RunOptions")
    named: dict[str, Any] = {**fields}
    for name in named:
        if name not in UseOptions.__annotations__:
            near = get_close_matches(name, UseOptions.__annotations__, 1)
            raise SpecError(
                f"use() has no option {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else "it takes the fields of RunOptions and of SamplingSpec",
            )
    sampling = {name: named.pop(name) for name in list(named) if name in _SAMPLING}
    if sampling:
        named["sampling"] = {**named.get("sampling", {}), **sampling}
    token = _current.set(settled(options if options is not None else RunOptions(**named)))
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
