"""Positions: what a model's configuration says about them, and rotary embeddings of packed tokens.

A configuration says how long the context is and at which lengths the model's behaviour changes; what is unknown is refused.

LongRoPE (Phi-3 and its kin) and dynamic NTK scaling rotate every position by factors that the length of the whole sequence
decides. transformers picks one set of factors per forward, by the largest position in it: right for one sequence computed
whole, wrong for rows of several lengths, for a chunk of a long prompt, and beside cached keys. Here each token is rotated by
the factors of its own sequence's length: the model's own rotary modules are called once per length among the step's rows,
and told the length by one further position. Lengths between two borders are rotated alike; a sequence that crosses a border
is computed anew (runtime/schedule), as transformers' plain forward over all its tokens would.

Attention modules that scale queries by their position (Llama 4) count it from the length of their cache; they are shown one
from which every packed token's own position comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import ModelLoadError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class PackedPositions:
    """Answers for the modules of one model that depend on more than `position_ids`; most models have none.

    borders: ascending lengths past which rotary factors are others. Band b of lengths is past b of them.
    """

    def __init__(self, modules: Iterable[nn.Module], context_tokens: int) -> None:
        modules = list(modules)
        rotary = [m for m in modules if any(_by_length(kind) for _, kind in rotary_kinds(m))]
        self.borders: Sequence[int] = _borders(rotary, context_tokens)
        self._context_tokens = context_tokens
        self._lengths: Tensor | None = None
        self._positions: Tensor | None = None
        for module in rotary:
            module.forward = self._rotating(module, module.forward)
        for module in modules:
            if getattr(module, "attn_temperature_tuning", False):
                module.forward = self._counting(module.forward)

    def lengths_of(self, bands: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor | None:
        """For each token of rows with these bands and token counts the longest length of its band; None if none matters."""
        if not self.borders:
            return None
        ends = self.borders
        lengths = [ends[band] if band < len(ends) else self._context_tokens for band in bands]
        return torch.repeat_interleave(torch.tensor(lengths), torch.tensor(counts)).to(device)

    @contextmanager
    def of(self, positions: Tensor, lengths: Tensor | None) -> Iterator[None]:
        """Inside, the model's packed tokens have these positions, in sequences of these lengths."""
        self._positions, self._lengths = positions, lengths
        try:
            yield
        finally:
            self._positions = self._lengths = None

    def _rotating(self, module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, position_ids: Tensor, *args: Any, **options: Any) -> Any:
            _reset(module)
            if self._lengths is None:
                return plain(x, position_ids, *args, **options)
            result: Any = None
            for length in torch.unique(self._lengths).tolist():
                _reset(module)
                last = position_ids.new_full((*position_ids.shape[:-1], 1), length - 1)
                among = torch.cat([position_ids.clamp(max=length - 1), last], dim=-1)
                found = plain(x, among, *args, **options)
                result = _chosen(self._lengths == length, found, result)
            return result

        return forward

    def _counting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            if self._positions is not None:
                options["cache"] = _Counted(self._positions)
            return plain(*args, **options)

        return forward


class _Counted:
    """A cache that holds nothing: only its length is asked, to which a module adds 0, 1, 2, ... for its tokens."""

    def __init__(self, positions: Tensor) -> None:
        self._before = positions - torch.arange(positions.shape[0], device=positions.device)

    def get_seq_length(self, layer: int = 0) -> Tensor:
        return self._before

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return keys, values


def _chosen(mine: Tensor, found: Any, before: Any) -> Any:
    """`found` without its last position, where `mine`; elsewhere what was found before."""
    if isinstance(found, tuple):
        earlier = before or (None,) * len(found)
        return tuple(_chosen(mine, part, other) for part, other in zip(found, earlier, strict=True))
    found = found[..., :-1, :]
    return found if before is None else torch.where(mine.unsqueeze(-1), found, before)


def _by_length(kind: str) -> bool:
    return kind == "longrope" or "dynamic" in kind


def rotary_kinds(module: nn.Module) -> Iterator[tuple[str | None, str]]:
    """Rotary types of a module, by the layer types it rotates for (None: for all alike)."""
    kind = getattr(module, "rope_type", None)
    if kind == "longrope":
        parameters: Any = getattr(module.config, "rope_parameters", {})
        if parameters.get("short_factor") == parameters.get("long_factor"):
            kind = "factors"  # one table for all lengths
    if isinstance(kind, str):
        yield None, kind
    elif isinstance(kind, dict):
        yield from ((layer, name) for layer, name in kind.items() if isinstance(name, str))


def _borders(modules: Sequence[nn.Module], context_tokens: int) -> Sequence[int]:
    """LongRoPE changes once, behind its original length; dynamic scaling with every token behind it."""
    found: set[int] = set()
    dynamic: list[int] = []
    for module in modules:
        for layer, kind in rotary_kinds(module):
            if "dynamic" in kind:
                dynamic.append(int(module.original_max_seq_len))  # type: ignore[arg-type]
            elif kind == "longrope":
                parameters: Any = module.config.rope_parameters  # type: ignore[union-attr]
                found.add(int((parameters[layer] if layer else parameters)["original_max_position_embeddings"]))
    if dynamic:
        return range(min([*dynamic, *found]), context_tokens)
    return sorted(found)


def _reset(module: Any) -> None:
    """As it was made: dynamic scaling otherwise remembers the longest sequence it has seen."""
    for layer, kind in rotary_kinds(module):
        prefix = f"{layer}_" if layer else ""
        if "dynamic" in kind and hasattr(module, f"{prefix}original_inv_freq"):
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
            original = getattr(module, f"{prefix}original_inv_freq").to(getattr(module, f"{prefix}inv_freq").device)
            setattr(module, f"{prefix}inv_freq", original)


_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "sparse", "dense", "moe", "mlp"}
_SCALED = {"linear", "dynamic", "yarn", "longrope", "llama3"}
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
_THRESHOLD_KEYS = ("sliding_window", "window_size", "attention_window", "attention_chunk_size", "floor_scale")


def refuse_unknown(config: PretrainedConfig, name: str) -> None:
    """A layer that is neither full, sliding-window nor chunked attention has state that pages of keys do not hold.

    Raises:
        ModelLoadError: naming the layer types.
    """
    text = config.get_text_config()
    types = getattr(text, "layer_types", None) or ()
    unknown = sorted({str(kind) for kind in types} - _LAYER_TYPES)
    if unknown:
        raise ModelLoadError(
            f"{name} has layers of a kind that cannot be run here: {', '.join(unknown)}",
            hint="models whose layers are full, sliding-window or chunked attention can be run",
        )
    for setting in ("attention_chunk_size", "sliding_window"):
        kind = "chunked_attention" if setting == "attention_chunk_size" else "sliding_attention"
        value = getattr(text, setting, None)
        if kind in types and not (isinstance(value, int) and value > 0):
            raise ModelLoadError(
                f"{name} has layers of {kind}, and its config.json says {setting}={value!r}",
                hint=f"correct {setting} in config.json: a positive whole number",
            )


def context_tokens(model: PreTrainedModel, wanted: int | None) -> int:
    """The longest sequence: `wanted`, or what the configuration says. Scaled rotary positions reach factor times as far.

    Raises:
        ModelLoadError: it says nothing, or more is wanted than a table of positions has rows.
    """
    config = model.config.get_text_config()
    lengths: list[Any] = [getattr(config, key, None) for key in _LENGTH_KEYS]
    stated: int | None = next((n for n in lengths if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)
    if stated is None and wanted is None:
        raise ModelLoadError(
            f"the config.json of this {type(model).__name__} does not say how long a sequence may be",
            hint="open it with ModelOptions(context_tokens=...)",
        )
    rotates = any(True for module in model.modules() for _ in rotary_kinds(module))
    if wanted is not None:
        if stated is not None and wanted > stated and not rotates:
            raise ModelLoadError(
                f"context_tokens={wanted} is more than the {stated} positions this {type(model).__name__} has learned",
                hint=f"at most {stated}",
            )
        return wanted
    return _scaled(config, stated or 0) if rotates else stated or 0


def thresholds(model: PreTrainedModel, borders: list[int], most: int) -> list[int]:
    """Lengths below `most` past which something changes: windows, chunks, scaled queries, rotary factors (`borders`)."""
    config = model.config.get_text_config()
    found = {*borders, *(getattr(config, key, None) for key in _THRESHOLD_KEYS)}
    for module in model.modules():
        found |= {
            getattr(module, key, None) for key in ("sliding_window", "window_size") if hasattr(module, "layer_idx")
        }
    numbers = {int(n) for n in found if isinstance(n, (int, float)) and not isinstance(n, bool)}
    return sorted(n for n in numbers if 1 < n < most)


def chunks_of(config: PretrainedConfig) -> dict[int, int]:
    """The chunk size of each layer with chunked attention."""
    return _sizes(config, "chunked_attention", "attention_chunk_size")


def windows_of(config: PretrainedConfig) -> dict[int, int]:
    """The window of each layer with sliding attention: for modules that leave it to transformers' masks."""
    return _sizes(config, "sliding_attention", "sliding_window")


def _sizes(config: PretrainedConfig, kind: str, key: str) -> dict[int, int]:
    text = config.get_text_config()
    types, size = getattr(text, "layer_types", None) or (), getattr(text, key, None)
    return {i: int(size) for i, name in enumerate(types) if name == kind and size}


def _scaled(config: PretrainedConfig, stated: int) -> int:
    """The shortest reach of any layer's rotary parameters."""
    return min((max(stated, reach or 0) for reach in _reaches(config, stated)), default=stated)


def _reaches(config: PretrainedConfig, stated: int) -> Iterator[int | None]:
    parameters: Any = getattr(config, "rope_parameters", None) or {}
    parts = [part for part in parameters.values() if isinstance(part, Mapping)] or [parameters]
    for part in parts:
        factor = part.get("factor")
        known = part.get("rope_type") in _SCALED and isinstance(factor, (int, float)) and factor > 1
        original = part.get("original_max_position_embeddings") or stated
        yield int(float(factor or 1) * original) if known else None


def attention_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that know which layer they belong to."""
    return (module for module in model.modules() if hasattr(module, "layer_idx"))
