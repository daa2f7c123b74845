"""Steps over packed tokens and paged pools, and an unmodified transformers model that computes them.

The model's modules call one attention function, registered with transformers under `NAME`; what it has to do is found on the
calling module itself, so any number of models can be loaded at once. No mask function is registered under that name,
therefore transformers builds no masks; no cache object is passed, therefore nothing but our pools holds keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ...errors import ModelLoadError
from ...kernels.attention import AttentionPlan, LayerAttention, attend, store
from .context import attention_modules, chunks_of, windows_of
from .pools import KvPool, LayerShape
from .rotary import PackedPositions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


class StepModel(Protocol):
    """A model and its pool: computes steps."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        wanted: Tensor,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """One step over packed tokens [T] at their positions. Stores all keys and values.

        lengths: of each token's whole sequence, for models that rotate by it (`PackedPositions.lengths_of`). Returns logits
        [len(wanted), V] at the packed places `wanted`, as the model's own head gives them; the head is not run if nothing is
        wanted.
        """


class Decoder(Protocol):
    """What turns tokens into logits, with attention answered from outside."""

    name: str

    def compute(
        self,
        token_ids: Tensor,
        positions: Tensor,
        lengths: Tensor | None,
        attention: BoundAttention,
        wanted: Tensor | None,
    ) -> Tensor:
        """Logits [len(wanted), V] of packed tokens [T] at their positions, in sequences of these lengths.

        wanted: packed places; None is all of them, and if there are none the head is not run.
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

    def compute(
        self,
        token_ids: Tensor,
        positions: Tensor,
        lengths: Tensor | None,
        attention: BoundAttention,
        wanted: Tensor | None,
    ) -> Tensor:
        """See `Decoder.compute`."""
        self._attention = attention
        options = {"input_ids": token_ids.unsqueeze(0), "position_ids": positions.unsqueeze(0), "use_cache": False}
        try:
            with self._positions.of(positions, lengths):
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
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        wanted: Tensor,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """See `StepModel.forward`."""
        self._pool.count_writes(plan.write_slots.shape[0])

        def attention(index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
            keys, values = self._pool.keys[index], self._pool.values[index]
            store(k, v, keys, values, plan)
            return attend(q, k, v, keys, values, plan, layer)

        return self._decoder.compute(token_ids, positions, lengths, attention, wanted)
