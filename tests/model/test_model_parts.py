"""Pools, packed linears, options and settings of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import ModelLoadError, SpecError
from sglang_dsl.runtime.model import options
from sglang_dsl.runtime.model.adapter import Copy, KvPool, LayerShape
from sglang_dsl.runtime.model.load import PackedLinear, can_pack, choose_device, choose_dtype, pack_linears
from sglang_dsl.runtime.model.options import ModelOptions

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")


def test_pool_counts_its_bytes_per_layer_shape() -> None:
    shapes = {0: LayerShape(2, 8, 8), 3: LayerShape(4, 16, 8)}
    counters = KvPool(shapes, 10, 4, dtype=torch.bfloat16, device=CPU).counters()
    assert counters.bytes_per_token == 2 * (2 * 16 + 4 * 24)
    assert counters.total_bytes == 40 * counters.bytes_per_token
    assert (counters.num_pages, counters.page_size, counters.written_tokens) == (10, 4, 0)


def test_pool_copy_moves_page_heads_in_every_layer() -> None:
    pool = KvPool({0: LayerShape(1, 2, 2), 1: LayerShape(1, 2, 3)}, 6, 4, dtype=torch.float32, device=CPU)
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor.copy_(torch.arange(24.0).view(24, 1, 1).expand_as(tensor))
    pool.copy([Copy(source=1, target=4, tokens=3), Copy(source=0, target=5, tokens=1)])
    for tensor in (*pool.keys.values(), *pool.values.values()):
        assert tensor[:, 0, 0].tolist() == [*range(16), 4, 5, 6, 19, 0, 21, 22, 23]
    assert pool.counters().copied_tokens == 4


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_linear_equals_plain(dtype: torch.dtype, bias: bool) -> None:
    if not can_pack(dtype, CPU):
        pytest.skip(f"this processor has no packed {dtype}")
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 80, bias=bias, dtype=dtype)
    x = torch.randn(2, 5, 48, dtype=dtype)
    with torch.inference_mode():
        torch.testing.assert_close(
            PackedLinear(linear)(x), linear(x), atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0
        )
        assert PackedLinear(linear)(x[:, :0]).shape == (2, 0, 80)


def test_pack_linears_leaves_subclasses_and_counts() -> None:
    class Special(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 2), Special(2, 2)))
    assert pack_linears(model) == 2
    assert isinstance(model[1][1], Special)


@pytest.mark.parametrize("options", [{"dtype": "int3"}, {"page_size": 0}, {"kv_bytes": -1}, {"threads": True}])
def test_model_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        ModelOptions(**options)  # type: ignore[arg-type]


def test_choose_device_without_cuda_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(ModelLoadError, match="sees no CUDA device"):
        choose_device("cuda")


def test_choose_dtype_auto_is_what_the_processor_computes_in() -> None:
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert choose_dtype(ModelOptions(), CPU) == (torch.bfloat16 if native else torch.float32)
    assert choose_dtype(ModelOptions(dtype="float16"), CPU) == torch.float16


def _apply_in_fresh_process(before: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")} | variables
    code = f"{before}\nfrom sglang_dsl.runtime.model.options import prepare_process; a = prepare_process(); assert prepare_process() == a; import sys; print(a, 'torch' in sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_settings_apply_loads_no_torch_and_is_idempotent() -> None:
    out = _apply_in_fresh_process("")
    assert "wait_policy='PASSIVE'" in out
    assert "notes=()" in out or "glibc" in out
    assert out.rstrip().endswith("False")


def test_settings_respect_variables_that_are_set() -> None:
    out = _apply_in_fresh_process("", OMP_WAIT_POLICY="ACTIVE", OMP_NUM_THREADS="3")
    assert "wait_policy='ACTIVE'" in out
    assert "threads=3" in out


def test_settings_after_torch_say_so() -> None:
    assert "came too late" in _apply_in_fresh_process("import torch")


def test_physical_cores_are_at_least_one_and_at_most_all() -> None:
    assert 1 <= options.physical_cores() <= (os.cpu_count() or 1)
