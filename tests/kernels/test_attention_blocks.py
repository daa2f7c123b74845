"""Batch-invariant attention: right, and bit by bit the same in any company."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.kernels.attention import (
    LayerAttention,
    QueryRow,
    attend_invariant,
    plan_step,
    plan_visits,
    reference,
)

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
LENGTH = 700
PAGES = torch.randperm(900, generator=torch.Generator().manual_seed(1))[:LENGTH].tolist()


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Where a sum is cut among threads depends on its shape: the mode promises its bits on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Context:
    """One sequence of 700 tokens, all its keys stored."""

    def __init__(self, heads: tuple[int, int], dtype: torch.dtype) -> None:
        g = torch.Generator().manual_seed(3)
        self.q = torch.randn(LENGTH, heads[0], 64, generator=g).to(dtype)
        self.keys = torch.randn(900, heads[1], 64, generator=g).to(dtype)
        self.values = torch.randn(900, heads[1], 64, generator=g).to(dtype)

    def attend(self, spans: list[tuple[int, int]], layer: LayerAttention) -> torch.Tensor:
        """Outputs for positions [start, end) of each span, all in one step."""
        rows = [QueryRow(end - start, start, PAGES) for start, end in spans]
        q = torch.cat([self.q[start:end] for start, end in spans])
        return attend_invariant(q, self.keys, self.values, plan_visits(rows, 1, CPU, layer.window), layer)


@pytest.mark.parametrize("window", [None, 100, 300])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (6, 1)])
def test_invariant_attention_equals_oracle(heads: tuple[int, int], window: int | None) -> None:
    context = Context(heads, torch.float32)
    layer = LayerAttention(0.125, window=window, sinks=torch.linspace(-1, 1, heads[0]))
    plan = plan_step([QueryRow(LENGTH, 0, PAGES)], page_size=1, device=CPU)
    expected = reference.attend(
        context.q, context.keys, context.values, plan,
        scale=0.125, window=window, sinks=layer.sinks, accumulate=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(context.attend([(0, LENGTH)], layer), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(9, 3), (6, 1)])
def test_invariant_attention_is_bitwise_the_same_in_any_company(
    heads: tuple[int, int], dtype: torch.dtype, window: int | None
) -> None:
    context, layer = Context(heads, dtype), LayerAttention(0.125, window=window)
    whole = context.attend([(0, LENGTH)], layer)
    for start, end in ((0, 1), (0, 100), (100, 257), (255, 256), (256, 257), (300, 700), (511, 512), (699, 700)):
        assert torch.equal(context.attend([(start, end)], layer), whole[start:end])
    crowd = [(3, 4), (300, 301), (511, 512), (512, 513), (40, 90), (699, 700)]
    together = torch.split(context.attend(crowd, layer), [end - start for start, end in crowd])
    for (start, end), part in zip(crowd, together, strict=True):
        assert torch.equal(part, whole[start:end])


def test_invariant_attention_reads_a_shared_block_once() -> None:
    """Rows that share their first 512 pages visit these two blocks together; their own last blocks are stacked."""
    rows = [QueryRow(1, 520 + i, PAGES[:512] + PAGES[600:680]) for i in range(8)]
    visits = plan_visits(rows, 1, CPU)
    assert [v.tokens.tolist() for v in visits] == [list(range(8))] * 3
    assert [v.slots.dim() for v in visits] == [1, 1, 2]


def test_invariant_attention_softcap_is_refused() -> None:
    with pytest.raises(ValueError, match="soft-capped"):
        Context((4, 4), torch.float32).attend([(0, 3)], LayerAttention(1.0, softcap=5.0))
