"""SmolLM2 through the local worker: log-probabilities with and without the cache, decode against prefill, constraints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import ModelNotFoundError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.kernels.attention import QueryRow, plan_step
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.model.adapter import PackedTokens
from sglang_dsl.runtime.model.load import load_model, read_model
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.supply import locate

pytestmark = [pytest.mark.engine, pytest.mark.model, pytest.mark.timeout(600)]

TEXT = (
    "The library opens at nine in the morning and closes at six in the evening, except on Sundays, when it stays closed. "
    "Books may be kept for three weeks and renewed twice, unless somebody else has asked for them in the meantime."
)


@pytest.fixture(scope="module")
def files() -> Any:
    try:
        return locate("smollm2")
    except ModelNotFoundError:
        pytest.skip("smollm2 was not pulled")


@pytest.fixture(scope="module")
def plain(files: Any) -> Any:
    return read_model(files.path, torch.float32).eval()


@pytest.fixture(scope="module")
def engine(files: Any) -> Iterator[Any]:
    opened = open_engine("smollm2", ModelOptions(dtype="float32", kv_bytes=256 << 20))
    yield opened
    opened.close()


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_smollm2_decode_distributions_stay_near_one_cold_prefill(files: Any, engine: Any, dtype: str) -> None:
    """40 positions one by one against all of them at once: Kullback-Leibler divergence, on the same weights."""
    options = ModelOptions(dtype=dtype, kv_bytes=64 << 20, self_check=False)
    model = load_model(files.path, options, fingerprint="x")
    ids = torch.tensor(engine.text.tokenizer.encode(TEXT))
    places, count = torch.arange(len(ids)), len(ids)

    def forward(start: int, end: int, pages: list[int]) -> torch.Tensor:
        plan = plan_step([QueryRow(end - start, start, pages)], page_size=1, device=model.device)
        wanted = torch.arange(end - start)
        return (
            model.packed.forward(PackedTokens(ids[start:end], places[start:end]), plan, wanted).float().log_softmax(-1)
        )

    whole = forward(0, count, list(range(count)))
    other = list(range(count, 2 * count))
    stepwise = torch.cat([forward(0, count - 40, other), *(forward(i, i + 1, other) for i in range(count - 40, count))])
    divergence = (whole.exp() * (whole - stepwise)).sum(-1)[-40:]
    assert float(divergence.mean()) < (1e-7 if dtype == "float32" else 3e-3)


def test_smollm2_prompt_logprobs_do_not_depend_on_the_cache(engine: Any, plain: Any) -> None:
    """Raw log-probabilities of every prompt position, cold and after a hit, are those of the plain forward."""
    prompt = engine.text.tokenizer.encode("A lighthouse keeper counts the ships that pass at night.")
    one = SamplingSpec(temperature=0, max_tokens=1)
    with torch.inference_mode():
        logits = plain(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(logits[i, token]) for i, token in enumerate(prompt[1:])]
    for _ in ("cold", "warm"):
        scores = engine.generate(prompt, one, prompt_logprobs=2).prompt_scores
        assert scores[0] is None
        assert [s.logprob for s in scores[1:]] == pytest.approx(expected, abs=2e-3)
        assert b"".join(s.token_bytes for s in scores[1:]).decode().endswith("pass at night.")


def test_smollm2_constrained_output_fits_its_schema(engine: Any) -> None:
    import json

    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["city", "stars"],
        "additionalProperties": False,
    }
    prompt = engine.text.tokenizer.encode("A city and its rating as JSON: ")
    spec = SamplingSpec(temperature=1.5, seed=3, max_tokens=64)
    result = engine.generate(prompt, spec, constraint=ConstraintSpec.json_schema(schema))
    value = json.loads(result.text)
    assert value["city"] in ("Paris", "Rome")
    assert 1 <= value["stars"] <= 5
    assert result.finish_reason == "constraint"
