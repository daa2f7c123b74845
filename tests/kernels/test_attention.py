"""Fast attention against the dense float64 oracle."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.kernels.attention import (
    AttentionPlan,
    ExtraWrite,
    LayerAttention,
    QueryRow,
    SharedKeys,
    attend,
    cascade,
    plan_step,
    reference,
    store,
)
from sglang_dsl.kernels.attention.cascade import Cascade, PartialAttention

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
SLOTS = 4096
DIM = 16


class Step:
    """Random queries, keys and values for rows, in pools whose unused slots are NaN."""

    def __init__(
        self,
        rows: Sequence[QueryRow],
        shared: Sequence[SharedKeys] = (),
        *,
        page_size: int = 1,
        heads: tuple[int, int] = (6, 2),
        dtype: torch.dtype = torch.float32,
        extra: Sequence[ExtraWrite] = (),
    ) -> None:
        self.plan: AttentionPlan = plan_step(rows, shared, extra, page_size=page_size, device=CPU)
        g = torch.Generator().manual_seed(7)
        tokens = self.plan.tokens
        self.q = torch.randn(tokens, heads[0], DIM, generator=g).to(dtype)
        self.k = torch.randn(tokens, heads[1], DIM, generator=g).to(dtype)
        self.v = torch.randn(tokens, heads[1], DIM, generator=g).to(dtype)
        self.keys = torch.full((SLOTS, heads[1], DIM), torch.nan, dtype=dtype)
        self.values = torch.full((SLOTS, heads[1], DIM), torch.nan, dtype=dtype)
        for row in rows:
            for position in range(row.start):
                slot = row.pages[position // page_size] * page_size + position % page_size
                if self.keys[slot].isnan().any():
                    self.keys[slot] = torch.randn(heads[1], DIM, generator=g).to(dtype)
                    self.values[slot] = torch.randn(heads[1], DIM, generator=g).to(dtype)
        store(self.k, self.v, self.keys, self.values, self.plan)

    def attend(self, layer: LayerAttention) -> torch.Tensor:
        return attend(self.q, self.k, self.v, self.keys, self.values, self.plan, layer)

    def oracle(self, layer: LayerAttention) -> torch.Tensor:
        return reference.attend(
            self.q, self.keys, self.values, self.plan,
            scale=layer.scale, window=layer.window, softcap=layer.softcap, sinks=layer.sinks, accumulate=torch.float64,
        )  # fmt: skip


def pages(count: int, seed: int) -> list[int]:
    return torch.randperm(SLOTS // 16, generator=torch.Generator().manual_seed(seed))[:count].tolist()


def forked_rows(page_size: int) -> tuple[list[QueryRow], list[SharedKeys]]:
    """Two levels of sharing: five rows below 3 pages, the last three below 2 more; mixed decode and prefill, one lone row."""
    order = pages(200, 3) if page_size > 1 else list(range(50, 250))
    free = iter(order)
    outer = [next(free) for _ in range(3)]
    inner = [next(free) for _ in range(2)]
    s = page_size
    rows = []
    for extra_pages, start_in_own, tokens in ((2, 1, 1), (2, 0, s + 1)):
        own = [next(free) for _ in range(extra_pages + 2)]
        rows.append(QueryRow(tokens, 3 * s + start_in_own, outer + own, 3 * s))
    for start_in_own, tokens in ((0, 1), (s, 1), (1, 4)):
        own = [next(free) for _ in range(8)]
        rows.append(QueryRow(tokens, 5 * s + start_in_own, outer + inner + own, 5 * s))
    rows.append(QueryRow(5, 0, [next(free) for _ in range(6)], 0))
    rows.append(QueryRow(1, 17, [next(free) for _ in range(18)], 0))
    return rows, [SharedKeys(0, 5, 0, 3 * s), SharedKeys(2, 5, 3 * s, 5 * s)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize(
    "layer",
    [
        LayerAttention(0.25),
        LayerAttention(0.25, window=5),
        LayerAttention(0.25, window=4000),
        LayerAttention(0.25, softcap=2.0),
        LayerAttention(0.25, softcap=2.0, window=7),
    ],
    ids=["plain", "window", "wide-window", "softcap", "softcap-window"],
)
def test_attention_mixed_step_equals_oracle(page_size: int, heads: tuple[int, int], layer: LayerAttention) -> None:
    step = Step(*forked_rows(page_size), page_size=page_size, heads=heads)
    torch.testing.assert_close(step.attend(layer), step.oracle(layer), atol=2e-6, rtol=0)


@pytest.mark.parametrize("window", [None, 3, 9])
@pytest.mark.parametrize("shared", [0, 48])
def test_attention_many_short_rows_equal_oracle(shared: int, window: int | None) -> None:
    """Choices of a select: rows of 1 to 20 tokens, some with a history of their own, in no order of length."""
    free = iter(range(64, 4000))
    common = list(range(48))
    rows = []
    for i, tokens in enumerate([2, 1, 3, 16, 2, 5, 17, 1, 9, 2, 20, 4]):
        history = (i * 7) % 5
        own = [next(free) for _ in range(history + tokens)]
        rows.append(QueryRow(tokens, 48 + history, common + own, shared))
    step = Step(rows, [SharedKeys(0, len(rows), 0, shared)])
    layer = LayerAttention(0.25, window=window)
    assert len(step.plan.gathered) > 2
    torch.testing.assert_close(step.attend(layer), step.oracle(layer), atol=2e-6, rtol=0)


@pytest.mark.parametrize("window", [None, 6])
def test_attention_with_sinks_equals_oracle(window: int | None) -> None:
    step = Step(*forked_rows(4), page_size=4)
    layer = LayerAttention(0.25, window=window, sinks=torch.linspace(-2, 3, 6))
    torch.testing.assert_close(step.attend(layer), step.oracle(layer), atol=2e-6, rtol=0)


def test_attention_portable_path_equals_oracle() -> None:
    step = Step(*forked_rows(16), page_size=16)
    out, _ = Cascade(step.q, step.k, step.v, step.keys, step.values, step.plan, 0.25, cascade.partial_portable).run()
    torch.testing.assert_close(out, step.oracle(LayerAttention(0.25)), atol=2e-6, rtol=0)


def test_attention_bfloat16_stays_near_oracle() -> None:
    step = Step(*forked_rows(1), dtype=torch.bfloat16)
    layer = LayerAttention(0.25)
    torch.testing.assert_close(step.attend(layer).float(), step.oracle(layer).float(), atol=2e-2, rtol=0)


@pytest.mark.parametrize("partial", [cascade.partial_cpu, cascade.partial_portable], ids=["cpu", "portable"])
def test_attention_logsumexp_is_natural(partial: PartialAttention) -> None:
    step = Step([QueryRow(1, 3, [4, 9, 2, 7], 0)], heads=(2, 2))
    _, lse = Cascade(step.q, step.k, step.v, step.keys, step.values, step.plan, 0.5, partial).run()
    scores = torch.einsum("hd,lhd->hl", step.q[0], step.keys[[4, 9, 2, 7]]) * 0.5
    torch.testing.assert_close(lse[0], scores.logsumexp(-1), atol=1e-6, rtol=0)


def test_store_extra_write_lands_in_both_pages() -> None:
    step = Step([QueryRow(3, 4, [5, 6], 0)], page_size=4, extra=[ExtraWrite(0, 6, 9, 2)])
    torch.testing.assert_close(step.keys[9 * 4 + 2], step.k[2])
    torch.testing.assert_close(step.keys[6 * 4 + 2], step.k[2])


def test_attention_child_reads_keys_its_parent_writes_in_the_same_step() -> None:
    shared = list(range(8))
    rows = [QueryRow(8, 0, shared, 0), QueryRow(2, 8, [*shared, 20, 21], 8), QueryRow(1, 8, [*shared, 30], 8)]
    step = Step(rows, [SharedKeys(1, 3, 0, 8)])
    layer = LayerAttention(0.25)
    torch.testing.assert_close(step.attend(layer), step.oracle(layer), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row"),
        ([QueryRow(0, 0, [1], 0)], "malformed"),
        ([QueryRow(1, 2, [1, 2, 3], 3)], "malformed"),
        ([QueryRow(2, 2, [1, 2, 3], 0)], "do not reach"),
    ],
)
def test_plan_malformed_rows_are_refused(rows: list[QueryRow], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_step(rows, page_size=1, device=CPU)


def test_attend_wrong_token_count_is_refused() -> None:
    step = Step([QueryRow(2, 0, [1, 2], 0)])
    with pytest.raises(ValueError, match="plan is for 2 tokens"):
        attend(step.q[:1], step.k, step.v, step.keys, step.values, step.plan, LayerAttention(1.0))
