"""The check every model passes before it serves: packed rows give what its own plain forward gives.

Two random sequences that begin alike are computed twice: each alone by the unmodified model, and together on pages, the
beginning as a shared level, in two chunks and a last single token. A model whose attention our function does not stand
for (position biases, its own cache, recurrent layers) differs by far more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import SelfCheckError
from ...kernels.attention import QueryRow, SharedKeys, plan_step
from .adapter import PackedModel, StepModel
from .pools import KvPool, LayerShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARED, CHUNK, TOKENS = 24, 37, 44  # tokens in common, of the first chunk, and in all; the last token is decoded alone
TOLERANCE = {torch.float32: 2e-4, torch.float64: 2e-4, torch.float16: 5e-2, torch.bfloat16: 3e-1}


@contextmanager
def in_float32(model: PreTrainedModel, spare_bytes: int) -> Iterator[torch.dtype]:
    """Parameters widened to float32 inside the block, each as it was after it; the type they then have.

    Only in float32 is rounding small enough to tell a subtly wrong attention. A model that is too big for `spare_bytes`
    stays in its own type, and is checked with that type's tolerance.
    """
    before = {name: p.dtype for name, p in model.named_parameters()}
    if sum(p.numel() * (4 - p.dtype.itemsize) for p in model.parameters()) > spare_bytes:
        yield model.dtype
        return
    try:
        for parameter in model.parameters():
            parameter.data = parameter.data.float()
        yield torch.float32
    finally:
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(before[name])


def check_tokens(vocab_size: int) -> Tensor:
    """Ids [2, TOKENS] that agree on the first SHARED."""
    generator = torch.Generator().manual_seed(20)
    ids = torch.randint(0, vocab_size, (2, TOKENS), generator=generator)
    ids[1, :SHARED] = ids[0, :SHARED]
    return ids


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, token_ids: Tensor) -> Tensor:
    """Logits [2, TOKENS, V] of the unmodified forward: both sequences are equally long, so nothing is padded."""
    logits: Tensor = model(input_ids=token_ids.to(model.device), use_cache=False).logits
    return logits


def verify(
    model: PreTrainedModel,
    shapes: dict[int, LayerShape],
    token_ids: Tensor,
    expected: Tensor,
    *,
    page_size: int,
    dtype: torch.dtype,
) -> float:
    """The largest relative difference of a position's logits, packed against `expected`. Leaves the model unbound.

    Raises:
        SelfCheckError: it is more than rounding in `dtype`.
    """
    measured = difference(_packed_logits(model, shapes, token_ids, page_size, dtype), expected)
    if not measured <= TOLERANCE[dtype]:
        raise SelfCheckError(
            f"{type(model).__name__} gives different logits on pages: relative difference {measured:.3g}, "
            f"allowed in {str(dtype).removeprefix('torch.')} is {TOLERANCE[dtype]:.3g}",
            hint="this architecture cannot be run here; please report it",
        )
    return measured


def difference(measured: Tensor, expected: Tensor) -> float:
    """Largest over positions of |measured - expected| / |expected| (Euclidean norms over the centred logits)."""
    centred = expected.float() - expected.float().mean(-1, keepdim=True)
    error = (measured.float() - expected.float()).norm(dim=-1) / centred.norm(dim=-1).clamp_min(1e-12)
    return float(error.max())


def verify_invariance(
    make: Callable[[PreTrainedModel, KvPool], StepModel],
    model: PreTrainedModel,
    shapes: dict[int, LayerShape],
    *,
    page_size: int,
    dtype: torch.dtype,
) -> None:
    """Compute the check's sequences in one step and in small ones, each token at another place of its batch.

    Raises:
        SelfCheckError: their logits differ in any bit.
    """
    token_ids = check_tokens(model.config.get_text_config().vocab_size)
    ways = [
        _stepwise_logits(make, model, shapes, token_ids, cuts, page_size=page_size, dtype=dtype)
        for cuts in ([0, TOKENS], [0, 5, 36, *range(37, TOKENS + 1)])
    ]
    if not torch.equal(*ways):
        raise SelfCheckError(
            f"{type(model).__name__} is not batch-invariant here: relative difference {difference(*ways):.3g}",
            hint="use threads=1 or dtype='bfloat16', or leave batch_invariant off",
        )


def _packed_logits(
    model: PreTrainedModel, shapes: dict[int, LayerShape], token_ids: Tensor, page_size: int, dtype: torch.dtype
) -> Tensor:
    """The first sequence's first chunk alone; then the rest of both, below their shared pages; then one token of each."""
    shared = SHARED // page_size * page_size
    cuts = [0, CHUNK, TOKENS - 1, TOKENS]
    return _stepwise_logits(
        PackedModel, model, shapes, token_ids, cuts, page_size=page_size, dtype=dtype, shared=shared
    )


def _stepwise_logits(
    make: Callable[[PreTrainedModel, KvPool], StepModel],
    model: PreTrainedModel,
    shapes: dict[int, LayerShape],
    token_ids: Tensor,
    cuts: Sequence[int],
    *,
    page_size: int,
    dtype: torch.dtype,
    shared: int = 0,
) -> Tensor:
    """Logits [2, TOKENS, V] of both sequences, computed in the steps between `cuts`.

    shared > 0: the first step computes sequence 0 only, and sequence 1 begins below the `shared` tokens it has in its pages.
    """
    per_row = -(-TOKENS // page_size)
    common = shared // page_size
    tables = [list(range(per_row)), [*range(common), *range(per_row, 2 * per_row - common)]]
    computer = make(model, KvPool(shapes, 2 * per_row, page_size, dtype=dtype, device=model.device))
    parts: list[list[Tensor]] = [[], []]
    done = [0, shared]
    for end in cuts[1:]:
        active = [0] if shared and end == cuts[1] else [0, 1]
        rows = [QueryRow(end - done[s], done[s], tables[s], min(shared, done[s])) for s in active]
        levels = [SharedKeys(0, 2, 0, shared)] if shared and len(active) == 2 else []
        plan = plan_step(rows, levels, page_size=page_size, device=model.device)
        ids = torch.cat([token_ids[s, done[s] : end] for s in active]).to(model.device)
        places = torch.cat([torch.arange(done[s], end) for s in active]).to(model.device)
        logits = computer.forward(ids, places, plan, torch.arange(plan.tokens, device=model.device))
        for s, part in zip(active, torch.split(logits, [row.tokens for row in rows]), strict=True):
            parts[s].append(part)
            done[s] = end
    first = torch.cat(parts[0])
    return torch.stack([first, torch.cat([first[:shared], *parts[1]])])
