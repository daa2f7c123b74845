"""What a model's configuration says about positions: how long its context is, where its behaviour changes, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from ...errors import ModelLoadError
from .rotary import rotary_kinds

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

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
