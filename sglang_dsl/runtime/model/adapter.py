"""Steps over packed tokens and paged pools, and an unmodified transformers model that computes them.

The model's modules call one attention function, registered with transformers under `NAME`; what it has to do is found on the
calling module itself, so any number of models can be loaded at once. No mask function is registered under that name,
therefore transformers builds no masks; no cache object is passed, therefore nothing but our pools (`KVPools`) holds keys and values.

The batch-invariant way to compute a step makes every bit of a token's logits depend on that token's context alone. The packed tokens
are put through the model in tiles of exactly TILE, so each operation sees one shape, whatever the batch; a short tile is filled up
with tokens that nobody reads. Rows stand parents first, so a tile only reads keys of tiles before it and its own. Attention goes over
fixed blocks of keys (kernels/attention/cascade.py). What remains, that a row of a matrix product could depend on its place in the
tile, is checked bit by bit when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ...errors import ModelLoadError
from ...kernels.attention import (
    AttentionPlan,
    BlockVisit,
    LayerAttention,
    QueryRow,
    attend,
    attend_invariant,
    plan_visits,
    slots_of,
    store,
)
from .positions import PackedPositions, attention_modules, chunks_of, windows_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LayerShape(NamedTuple):
    """Key/value heads of a layer and the sizes of a key and a value."""

    heads: int
    key_size: int
    value_size: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes one token's key and value take."""
        return self.heads * (self.key_size + self.value_size) * dtype.itemsize


class Copy(NamedTuple):
    """The first `tokens` slots of page `source` go to page `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounters:
    """Sizes, and what was moved since the pool was made."""

    num_pages: int
    page_size: int
    bytes_per_token: int
    total_bytes: int
    written_tokens: int
    copied_tokens: int


class KvPool:
    """One tensor [num_pages * page_size, heads, size] for keys and one for values, per attention layer (keyed by its index).

    Memory is reserved at once but touched page by page as it is first written.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        num_pages: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots = num_pages * page_size
        self.keys = {i: torch.empty(slots, s.heads, s.key_size, dtype=dtype, device=device) for i, s in shapes.items()}
        self.values = {
            i: torch.empty(slots, s.heads, s.value_size, dtype=dtype, device=device) for i, s in shapes.items()
        }
        self.num_pages = num_pages
        self.page_size = page_size
        self.bytes_per_token = sum(s.bytes_per_token(dtype) for s in shapes.values())
        self._device = device
        self._written = 0
        self._copied = 0

    def count_writes(self, tokens: int) -> None:
        """A step stores this many token slots per layer."""
        self._written += tokens

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy page heads in every layer. Targets are distinct and no target is a source."""
        if not copies:
            return
        source = self._slots([(c.source, c.tokens) for c in copies])
        target = self._slots([(c.target, c.tokens) for c in copies])
        for pool in (*self.keys.values(), *self.values.values()):
            pool.index_copy_(0, target, pool.index_select(0, source))
        self._copied += source.shape[0]

    def counters(self) -> PoolCounters:
        """A snapshot."""
        return PoolCounters(
            num_pages=self.num_pages,
            page_size=self.page_size,
            bytes_per_token=self.bytes_per_token,
            total_bytes=self.num_pages * self.page_size * self.bytes_per_token,
            written_tokens=self._written,
            copied_tokens=self._copied,
        )

    def _slots(self, heads_of_pages: Sequence[tuple[int, int]]) -> Tensor:
        parts = [torch.from_numpy(slots_of([page], 0, tokens, self.page_size)) for page, tokens in heads_of_pages]
        return torch.cat(parts).to(self._device)


NAME = "sglang_dsl"
_BOUND = "_sglang_dsl_attention"
_HARMLESS = frozenset(
    {"dropout", "position_ids", "is_causal", "use_cache", "cache", "output_attentions", "output_router_logits"}
    | {"output_hidden_states", "logits_to_keep", "return_dict", "position_embeddings", "layer_idx"}
)
"""What modules pass to their attention that changes nothing here: all else is honoured or refused."""


class BoundAttention(Protocol):
    """What an attention module's call is answered by. q [T, H, D], k [T, G, D], v [T, G, E]; returns [T, H, E]."""

    def __call__(self, index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """Attention of layer `index`."""


class PackedTokens(NamedTuple):
    """Tokens of several sequences one behind the other: ids [T], positions [T], and the length [T] of each token's whole sequence
    for models that rotate by it (`PackedPositions.lengths_of`).
    """

    token_ids: Tensor
    positions: Tensor
    lengths: Tensor | None = None


class StepModel(Protocol):
    """A model and its pool: computes steps."""

    def forward(self, tokens: PackedTokens, plan: AttentionPlan, wanted: Tensor) -> Tensor:
        """One step over packed tokens. Stores all keys and values.

        Returns logits [len(wanted), V] at the packed places `wanted`, as the model's own head gives them; the head is not run if
        nothing is wanted.
        """


class Decoder(Protocol):
    """What turns tokens into logits, with attention answered from outside."""

    name: str

    def compute(self, tokens: PackedTokens, attention: BoundAttention, wanted: Tensor | None) -> Tensor:
        """Logits [len(wanted), V] of packed tokens. wanted: packed places; None is all of them, and if there are none the head is
        not run.
        """


def register() -> None:
    """Make the attention function known to transformers. Idempotent."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)


def bind(model: PreTrainedModel, attention: BoundAttention) -> None:
    """Answer every attention call of this model with `attention`."""
    chunks, windows = chunks_of(model.config), windows_of(model.config)
    for module in attention_modules(model):
        index = cast(int, module.layer_idx)
        setattr(module, _BOUND, _Bound(attention, windows.get(index), chunks.get(index)))
    model.set_attn_implementation(NAME)


class _Bound(NamedTuple):
    """Who answers a module, and what its layer type says and its call may not: a window, a chunk."""

    attention: BoundAttention
    window: int | None
    chunk: int | None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, H, T, D], key and value [1, G, T, ·]; gives [1, T, H, E]."""
    bound = cast(_Bound, getattr(module, _BOUND))
    unknown = [
        name for name, value in other.items() if name not in _HARMLESS and value is not None and value is not False
    ]
    if other.get("is_causal") is False:
        unknown.append("is_causal=False")
    if unknown:
        raise ModelLoadError(
            f"{type(module).__name__} asks its attention for what cannot be honoured here: {', '.join(sorted(unknown))}",
            hint="this architecture cannot be run here; please report it",
        )
    layer = LayerAttention(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=bound.window if sliding_window is None else sliding_window,
        chunk=bound.chunk,
        softcap=softcap,
        sinks=s_aux if s_aux is not None else sinks,
    )
    index = cast(int, module.layer_idx)
    out = bound.attention(index, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), layer)
    return out.unsqueeze(0), None


def probe(model: PreTrainedModel) -> tuple[dict[int, LayerShape], bool]:
    """Shapes of every attention layer, found by running one token through the model, and whether any caps its scores softly.
    Leaves the model bound to the probe.

    Raises:
        ModelLoadError: the model computes attention some other way, so it cannot be run on pages.
    """
    shapes: dict[int, LayerShape] = {}
    softcapped = False

    def record(index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        nonlocal softcapped
        shapes[index] = LayerShape(k.shape[1], k.shape[2], v.shape[2])
        softcapped |= bool(layer.softcap)
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # one token attends to itself alone

    register()
    bind(model, record)
    with torch.inference_mode():
        token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        decoder = model.get_decoder()  # type: ignore[no-untyped-call]
        decoder(input_ids=token, position_ids=token, use_cache=False)
    if not shapes:
        raise ModelLoadError(
            f"{type(model).__name__} does not use transformers' attention interface",
            hint="models with full or sliding-window attention that call it can be run",
        )
    return shapes, softcapped


class TransformersDecoder:
    """A transformers model as a `Decoder`. Whoever holds it has the model to itself: its attention is bound."""

    def __init__(self, model: PreTrainedModel, positions: PackedPositions) -> None:
        self.name = type(model).__name__
        self._model = model
        self._positions = positions
        self._decoder = model.get_decoder()  # type: ignore[no-untyped-call]
        self._attention: BoundAttention | None = None
        bind(model, self._attend)

    def compute(self, tokens: PackedTokens, attention: BoundAttention, wanted: Tensor | None) -> Tensor:
        """One forward of the model's own modules over one sequence of all packed tokens."""
        self._attention = attention
        ids, positions = tokens.token_ids.unsqueeze(0), tokens.positions.unsqueeze(0)
        options = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        try:
            with self._positions.of(tokens.positions, tokens.lengths):
                if wanted is None:
                    logits: Tensor = self._model(**options).logits
                elif wanted.numel():
                    logits = self._model(**options, logits_to_keep=wanted).logits
                else:
                    self._decoder(**options)
                    return torch.empty(0, 0, device=wanted.device)
                return logits[0]
        finally:
            self._attention = None

    def _attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        if self._attention is None:
            raise RuntimeError("the model's attention was called outside of TransformersDecoder.compute")
        return self._attention(index, q, k, v, layer)


class PackedModel:
    """The fast way: one forward over all tokens of the step."""

    def __init__(self, decoder: Decoder, pool: KvPool) -> None:
        self._decoder = decoder
        self._pool = pool

    @torch.inference_mode()
    def forward(self, tokens: PackedTokens, plan: AttentionPlan, wanted: Tensor) -> Tensor:
        """All tokens at once."""
        self._pool.count_writes(plan.write_slots.shape[0])

        def attention(index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
            keys, values = self._pool.keys[index], self._pool.values[index]
            store(k, v, keys, values, plan)
            return attend(q, k, v, keys, values, plan, layer)

        return self._decoder.compute(tokens, attention, wanted)


TILE = 32


class _Tile(NamedTuple):
    """Tokens [first, end) of a step, as rows of their own, and what they store: token `sources[i]` at `slots[i]`."""

    first: int
    end: int
    rows: tuple[QueryRow, ...]
    sources: Tensor
    slots: Tensor


class TiledModel:
    """A decoder and its pool; computes the same steps as `PackedModel`, slower and always alike."""

    def __init__(self, decoder: Decoder, pool: KvPool) -> None:
        self._decoder = decoder
        self._pool = pool

    @torch.inference_mode()
    def forward(self, tokens: PackedTokens, plan: AttentionPlan, wanted: Tensor) -> Tensor:
        """Tile after tile."""
        self._pool.count_writes(plan.write_slots.shape[0])
        logits = [self._forward_tile(tile, tokens, wanted) for tile in _tiles(plan)]
        found = [part for part in logits if part is not None]
        if not found:
            return torch.empty(0, 0, device=wanted.device)
        return torch.cat(found)[torch.argsort(torch.argsort(wanted))]

    def _forward_tile(self, tile: _Tile, tokens: PackedTokens, wanted: Tensor) -> Tensor | None:
        """Logits of the wanted tokens in this tile, in ascending order; None if there are none."""
        mine = slice(tile.first, tile.end)
        lengths = tokens.lengths
        own = None if lengths is None else _filled(lengths[mine], int(lengths[tile.first]))
        here = wanted[(wanted >= tile.first) & (wanted < tile.end)].sort().values - tile.first
        cut = PackedTokens(_filled(tokens.token_ids[mine]), _filled(tokens.positions[mine]), own)
        if not here.numel():
            self._decoder.compute(cut, self._attention(tile), here)
            return None
        return self._decoder.compute(cut, self._attention(tile), None)[here]  # the head sees a whole tile too

    def _attention(self, tile: _Tile) -> BoundAttention:
        visits: dict[tuple[int | None, int | None], tuple[BlockVisit, ...]] = {}

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
            keys, values = self._pool.keys[index], self._pool.values[index]
            keys.index_copy_(0, tile.slots, k.index_select(0, tile.sources))
            values.index_copy_(0, tile.slots, v.index_select(0, tile.sources))
            seen = layer.window, layer.chunk
            if seen not in visits:
                visits[seen] = plan_visits(tile.rows, self._pool.page_size, q.device, *seen)
            tokens = tile.end - tile.first
            out = q.new_zeros(TILE, q.shape[1], values.shape[-1])
            out[:tokens] = attend_invariant(q[:tokens], keys, values, visits[seen], layer)
            return out

        return attend


def _filled(values: Tensor, filling: int = 0) -> Tensor:
    """[TILE], with `filling` behind."""
    return torch.nn.functional.pad(values, (0, TILE - values.shape[0]), value=filling)


def _tiles(plan: AttentionPlan) -> list[_Tile]:
    sources = plan.write_tokens if plan.write_tokens is not None else torch.arange(plan.tokens, device=plan.device)
    tiles = []
    for first in range(0, plan.tokens, TILE):
        end = min(first + TILE, plan.tokens)
        mine = torch.nonzero((sources >= first) & (sources < end)).squeeze(1)
        rows = _cut(plan.rows, plan.first_tokens(), first, end)
        tiles.append(_Tile(first, end, rows, sources[mine] - first, plan.write_slots[mine]))
    return tiles


def _cut(rows: Sequence[QueryRow], firsts: Sequence[int], first: int, end: int) -> tuple[QueryRow, ...]:
    """The parts of rows that lie in packed tokens [first, end)."""
    cut = []
    for row, place in zip(rows, firsts, strict=False):
        begin, stop = max(first - place, 0), min(end - place, row.tokens)
        if begin < stop:
            cut.append(QueryRow(stop - begin, row.start + begin, row.pages))
    return tuple(cut)
