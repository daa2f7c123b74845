"""The check every model passes before it serves: computed as it will be served, it gives what its own plain forward gives.

Random sequences are computed twice: each alone by the unmodified model, and all together on pages, two of them below a shared
beginning, in chunks and a last single token. One of them is longer than each length at which the configuration changes
something (windows, chunks, rotary factors), so that rows on both sides of it stand in one step. A model whose attention our
function does not stand for (position biases, its own cache, recurrent layers) differs by far more than rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import DslError, SelfCheckError
from ...kernels.attention import QueryRow, SharedKeys, plan_step
from .adapter import Decoder, KvPool, LayerShape, PackedTokens, StepModel
from .positions import PackedPositions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARED, CHUNK, TOKENS = 24, 37, 44  # tokens in common, of the first chunk, and in all; the last token is decoded alone
BEYOND = 13  # tokens by which a long sequence passes its threshold
KEPT = 24  # of a long sequence so many last positions are compared
MOST_TOKENS = 16_384  # no sequence of the check is longer
MOST_WORK = {
    "cpu": 2e12,
    "cuda": 1e15,
}  # parameters times tokens; above it, long sequences run through a few layers only
TOLERANCE = {torch.float32: 2e-4, torch.float64: 2e-4, torch.float16: 5e-2, torch.bfloat16: 3e-1}

Make = Callable[[Decoder, KvPool], StepModel]
_log = logging.getLogger(__name__)


class CheckRow(NamedTuple):
    """One sequence of the check; `kept` of its last positions are compared."""

    token_ids: Tensor
    kept: int


class CheckModel(NamedTuple):
    """What is checked: a decoder of the model, the shapes of its layers, and how it will be run."""

    model: PreTrainedModel
    decoder: Decoder
    shapes: dict[int, LayerShape]
    positions: PackedPositions
    page_size: int
    device: torch.device
    vocab_size: int
    softcapped: bool = False


class CheckGroup(NamedTuple):
    """Sequences that are computed together, and the logits [kept, V] the plain forward gave each."""

    rows: list[CheckRow]
    expected: list[Tensor]
    shortened: bool


@contextmanager
def in_float32(model: PreTrainedModel, spare_bytes: int) -> Iterator[torch.dtype]:
    """Parameters widened to float32 inside the block, each as it was after it; the type they then have.

    Only in float32 is rounding small enough to tell a subtly wrong attention. A model that is too big for `spare_bytes`
    stays in its own type, and is checked with that type's tolerance.
    """
    before = {name: p.data for name, p in model.named_parameters()}
    if sum(p.numel() * 4 for p in model.parameters() if p.dtype != torch.float32) > spare_bytes:
        yield model.dtype
        return
    try:
        for parameter in model.parameters():
            parameter.data = parameter.data.float()
        yield torch.float32
    finally:
        for name, parameter in model.named_parameters():
            parameter.data = before[name]


def check_tokens(vocab_size: int) -> Tensor:
    """Ids [2, TOKENS] that agree on the first SHARED."""
    generator = torch.Generator().manual_seed(20)
    ids = torch.randint(0, vocab_size, (2, TOKENS), generator=generator)
    ids[1, :SHARED] = ids[0, :SHARED]
    return ids


def check_rows(vocab_size: int, thresholds: Sequence[int], context_tokens: int) -> list[CheckRow]:
    """The two of `check_tokens`, and one past each threshold."""
    rows = [CheckRow(ids[:context_tokens], min(TOKENS, context_tokens)) for ids in check_tokens(vocab_size)]
    generator = torch.Generator().manual_seed(21)
    for threshold in thresholds:
        tokens = min(threshold + BEYOND, context_tokens)
        rows.append(CheckRow(torch.randint(0, vocab_size, (tokens,), generator=generator), min(KEPT, tokens)))
    return rows


def expected_groups(model: PreTrainedModel, rows: list[CheckRow]) -> list[CheckGroup]:
    """What the unmodified model gives, in one group if that is little work; else the long sequences in a group of their own,
    computed with the model's first layers only, one of each type at least: what differs from architecture to architecture is
    how a layer attends, not how many there are.
    """
    if _work(model, rows) <= _most_work(model):
        return [CheckGroup(rows, plain_logits(model, rows), shortened=False)]
    groups = [CheckGroup(rows[:2], plain_logits(model, rows[:2]), shortened=False)]
    with few_layers(model):
        while len(rows) > 2 and _work(model, rows) > _most_work(model):
            _log.warning(
                "past %d tokens this model was not compared with its plain forward", rows[-1].token_ids.shape[0]
            )
            rows = rows[:-1]
        if len(rows) > 2:
            groups.append(CheckGroup(rows, plain_logits(model, rows), shortened=True))
    return groups


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, rows: Sequence[CheckRow]) -> list[Tensor]:
    """Logits [kept, V] of the unmodified forward of each sequence alone."""
    found = []
    for row in rows:
        ids = row.token_ids.unsqueeze(0).to(model.device)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        found.append(logits[0, -row.kept :].clone())
    return found


@contextmanager
def few_layers(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model has only its first layers, one of each type at least."""
    decoder, config = model.get_decoder(), model.config.get_text_config()  # type: ignore[no-untyped-call]
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        yield
        return
    types = list(getattr(config, "layer_types", None) or ())
    count = min(len(layers), max([2, *(types.index(kind) + 1 for kind in set(types))]))
    before = config.num_hidden_layers
    decoder.layers, config.num_hidden_layers = layers[:count], count
    try:
        yield
    finally:
        decoder.layers, config.num_hidden_layers = layers, before


def verify_all(made: CheckModel, make: Make, groups: Sequence[CheckGroup], *, dtype: torch.dtype) -> float:
    """`verify` for each group; the largest difference.

    Raises:
        SelfCheckError: it is more than rounding in `dtype`, or the model cannot be run in this way at all.
    """
    worst = 0.0
    for group in groups:
        with few_layers(made.model) if group.shortened else nullcontext():
            try:
                worst = max(worst, verify(made, make, group.rows, group.expected, dtype=dtype))
            except DslError:
                raise
            except Exception as error:
                raise SelfCheckError(
                    f"{made.decoder.name} cannot be run on pages: {type(error).__name__}: {error}",
                    hint="this architecture cannot be run here; please report it",
                ) from error
    return worst


def _work(model: PreTrainedModel, rows: Sequence[CheckRow]) -> float:
    return float(sum(p.numel() for p in model.parameters())) * sum(len(row.token_ids) for row in rows)


def _most_work(model: PreTrainedModel) -> float:
    return MOST_WORK.get(model.device.type, MOST_WORK["cpu"])


def verify(
    made: CheckModel, make: Make, rows: Sequence[CheckRow], expected: Sequence[Tensor], *, dtype: torch.dtype
) -> float:
    """The largest relative difference of a position's logits, packed against `expected`. Leaves the model bound.

    Raises:
        SelfCheckError: it is more than rounding in `dtype`.
    """
    shared = min(SHARED, len(rows[0].token_ids) - 1) // made.page_size * made.page_size
    longest = max(len(row.token_ids) for row in rows)
    cuts = [0, *(cut for cut in (CHUNK, TOKENS - 1, TOKENS) if cut < longest), longest - 1, longest]
    found = _stepwise_logits(made, make, rows, sorted(set(cuts)), dtype=dtype, shared=shared)
    measured = max(difference(*pair) for pair in zip(found, expected, strict=True))
    if not measured <= TOLERANCE[dtype]:
        raise SelfCheckError(
            f"{made.decoder.name} gives different logits on pages: relative difference {measured:.3g}, "
            f"allowed in {str(dtype).removeprefix('torch.')} is {TOLERANCE[dtype]:.3g}",
            hint="this architecture cannot be run here; please report it",
        )
    return measured


def difference(measured: Tensor, expected: Tensor) -> float:
    """Largest over positions of |measured - expected| / |expected| (Euclidean norms over the centred logits)."""
    centred = expected.float() - expected.float().mean(-1, keepdim=True)
    error = (measured.float() - expected.float()).norm(dim=-1) / centred.norm(dim=-1).clamp_min(1e-12)
    return float("nan") if bool(error.isnan().any()) else float(error.max())


def verify_invariance(made: CheckModel, make: Make, *, dtype: torch.dtype) -> None:
    """Compute the check's sequences in one step and in small ones, each token at another place of its batch.

    Raises:
        SelfCheckError: their logits differ in any bit.
    """
    rows = [CheckRow(ids, TOKENS) for ids in check_tokens(made.vocab_size)]
    ways = [
        torch.stack(_stepwise_logits(made, make, rows, cuts, dtype=dtype))
        for cuts in ([0, TOKENS], [0, 5, 36, *range(37, TOKENS + 1)])
    ]
    if not torch.equal(*ways):
        raise SelfCheckError(
            f"{made.decoder.name} is not batch-invariant here: relative difference {difference(*ways):.3g}",
            hint="use threads=1 or dtype='bfloat16', or leave batch_invariant off",
        )


def _stepwise_logits(
    made: CheckModel,
    make: Make,
    rows: Sequence[CheckRow],
    cuts: Sequence[int],
    *,
    dtype: torch.dtype,
    shared: int = 0,
) -> list[Tensor]:
    """Logits [kept, V] of the sequences, computed in the steps between `cuts`, as far as each reaches.

    shared > 0: the first step computes all but sequence 1, which begins below the `shared` tokens it has in sequence 0's pages.
    """
    size, device = made.page_size, made.device
    tables: list[list[int]] = []
    pages = 0
    for i, row in enumerate(rows):
        common = shared // size if i == 1 else 0
        own = -(-len(row.token_ids) // size) - common
        tables.append([*(tables[0][:common] if common else []), *range(pages, pages + own)])
        pages += own
    computer = make(made.decoder, KvPool(made.shapes, pages, size, dtype=dtype, device=device))
    parts: list[list[Tensor]] = [[] for _ in rows]
    done = [shared if i == 1 else 0 for i in range(len(rows))]
    for step, cut in enumerate(cuts[1:]):
        ends = [min(cut, len(row.token_ids)) for row in rows]
        active = [i for i in range(len(rows)) if ends[i] > done[i] and not (shared and step == 0 and i == 1)]
        queries = [
            QueryRow(ends[i] - done[i], done[i], tables[i], min(shared, done[i]) if i < 2 else 0) for i in active
        ]
        levels = [SharedKeys(0, 2, 0, shared)] if shared and active[:2] == [0, 1] else []
        plan = plan_step(queries, levels, page_size=size, device=device)
        ids = torch.cat([rows[i].token_ids[done[i] : ends[i]] for i in active]).to(device)
        places = torch.cat([torch.arange(done[i], ends[i]) for i in active]).to(device)
        bands = [_band(made.positions, len(rows[i].token_ids)) for i in active]
        lengths = made.positions.lengths_of(bands, [query.tokens for query in queries], device)
        firsts, wanted = plan.first_tokens(), list[Tensor]()
        for i, first in zip(active, firsts, strict=False):
            begin = min(max(done[i], len(rows[i].token_ids) - rows[i].kept), ends[i])
            wanted.append(torch.arange(first + begin - done[i], first + ends[i] - done[i]))
        logits = computer.forward(PackedTokens(ids, places, lengths), plan, torch.cat(wanted).to(device))
        for i, part in zip(active, torch.split(logits, [len(places) for places in wanted]), strict=True):
            parts[i].append(part)
            done[i] = ends[i]
    whole = [torch.cat(part) for part in parts]
    if shared:
        whole[1] = torch.cat([whole[0][:shared], whole[1]])
    return [logits[-row.kept :] for logits, row in zip(whole, rows, strict=True)]


def _band(positions: PackedPositions, tokens: int) -> int:
    return sum(border < tokens for border in positions.borders)
