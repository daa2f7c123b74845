"""Batch-invariant mode over a whole model: bits do not depend on company, chunking, sharing or the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import SelfCheckError
from sglang_dsl.kernels.attention import ExtraWrite, QueryRow, SharedKeys, plan_step
from sglang_dsl.runtime.model import adapter, check
from sglang_dsl.runtime.model.adapter import PackedTokens
from sglang_dsl.runtime.model.load import LoadedModel, serve
from sglang_dsl.runtime.model.options import ModelOptions

pytestmark = pytest.mark.engine

MakeModel = Callable[[str], Any]
PARENT = torch.randint(0, 64, (50,), generator=torch.Generator().manual_seed(9)).tolist()
SUFFIXES = [[1, 2, 3], [9], [4, 4, 4, 4, 4, 7, 1]]


@pytest.fixture(autouse=True)
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(model: Any, page_size: int = 1, **options: Any) -> LoadedModel:
    values = {"dtype": "float32", "device": "cpu", "kv_bytes": 1 << 21, "batch_invariant": True, "page_size": page_size}
    return serve(model, ModelOptions(**(values | options)), fingerprint="x")


def forward(
    loaded: LoadedModel,
    rows: list[tuple[list[int], QueryRow]],
    shared: list[SharedKeys],
    wanted: list[int],
    **extra: Any,
) -> torch.Tensor:
    plan = plan_step([row for _, row in rows], shared, page_size=loaded.pool.page_size, device=loaded.device, **extra)
    ids = torch.tensor([i for ids, _ in rows for i in ids])
    places = torch.cat([torch.arange(row.start, row.end) for _, row in rows])
    return loaded.packed.forward(PackedTokens(ids, places), plan, torch.tensor(wanted))


def alone(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    """Last logits of a sequence by itself, cold."""
    pages = list(range(-(-len(ids) // loaded.pool.page_size)))
    return forward(loaded, [(ids, QueryRow(len(ids), 0, pages))], [], [len(ids) - 1])[0]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_invariant_children_of_a_same_step_parent_equal_cold_runs(
    family: str, dtype: str, make_model: MakeModel
) -> None:
    model = make_model(family)
    if dtype == "bfloat16":
        model = model.to(torch.bfloat16)
    loaded = load(model, page_size=16)
    cold = [alone(loaded, PARENT + suffix) for suffix in SUFFIXES]
    rows = [(PARENT, QueryRow(50, 0, [10, 11, 12, 13]))]
    extra = []
    for i, suffix in enumerate(SUFFIXES):
        own = [20 + 2 * i, 21 + 2 * i]
        extra += [ExtraWrite(0, p, own[0], p - 48) for p in (48, 49)]
        rows.append((suffix, QueryRow(len(suffix), 50, [10, 11, 12, *own], 48)))
    ends = torch.tensor([50 + 3, 50 + 4, 50 + 11]) - 1
    order = [2, 0, 1]
    warm = forward(loaded, rows, [SharedKeys(1, 4, 0, 48)], ends[order].tolist(), extra_writes=extra)
    for place, i in enumerate(order):
        assert torch.equal(warm[place], cold[i])


def test_invariant_chunks_and_decode_in_a_crowd_equal_one_prefill(make_model: MakeModel) -> None:
    loaded = load(make_model("llama"))
    ids = PARENT + SUFFIXES[2]
    expected = alone(loaded, ids)
    pages = list(range(100, 160))
    forward(loaded, [(ids[:17], QueryRow(17, 0, pages))], [], [])
    for position in range(17, len(ids)):
        crowd = [([position % 60], QueryRow(1, 0, [200 + i])) for i in range(position % 40)]
        rows = [*crowd, ([ids[position]], QueryRow(1, position, pages))]
        out = forward(loaded, rows, [], [len(crowd)])
    assert torch.equal(out[0], expected)


def test_invariant_logits_stay_near_the_fast_way(make_model: MakeModel) -> None:
    exact = alone(load(make_model("llama")), PARENT)
    fast = alone(load(make_model("llama"), batch_invariant=False), PARENT)
    torch.testing.assert_close(exact, fast, atol=1e-4, rtol=0)


def test_invariance_that_does_not_hold_is_refused(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tiles the products of a long and a short step have different shapes."""
    noise = iter(range(10_000))
    filled = adapter._filled
    monkeypatch.setattr(adapter, "_filled", lambda values: filled((values + next(noise) // 3) % 64))
    with pytest.raises(SelfCheckError, match="not batch-invariant"):
        load(make_model("llama"), self_check=False)


def test_check_tokens_share_their_beginning_only() -> None:
    ids = check.check_tokens(1000)
    assert torch.equal(ids[0, : check.SHARED], ids[1, : check.SHARED])
    assert not torch.equal(ids[0, check.SHARED :], ids[1, check.SHARED :])
