"""One token from one row, against a plain-Python oracle and at the numeric edges."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.sample.sampler import (
    draw,
    is_greedy,
    largest,
    uniform,
)

pytestmark = pytest.mark.engine


def oracle_distribution(logits: list[float], spec: SamplingSpec) -> list[float]:
    """Probabilities after temperature, top-k, top-p, min-p, in plain Python."""
    peak = max(logits)
    weights = [math.exp((x - peak) / spec.temperature) for x in logits]
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if spec.top_k:
        ranked = ranked[: spec.top_k]
    goal, reached, nucleus = spec.top_p * sum(weights[i] for i in ranked), 0.0, []
    for i in ranked:
        if nucleus and reached >= goal:
            break
        nucleus.append(i)
        reached += weights[i]
    kept = {i for i in nucleus if weights[i] >= spec.min_p} if spec.top_p < 1 else set(ranked)
    kept = {i for i in kept if weights[i] >= spec.min_p}
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


LOGITS = [2.0, -1.0, 3.0, 3.0, 0.5, -math.inf, 1.5, 2.9]


@pytest.mark.parametrize(
    "spec",
    [
        SamplingSpec(),
        SamplingSpec(temperature=0.3),
        SamplingSpec(temperature=5.0),
        SamplingSpec(top_k=3),
        SamplingSpec(top_k=2),
        SamplingSpec(top_p=0.6),
        SamplingSpec(top_p=0.999),
        SamplingSpec(min_p=0.3),
        SamplingSpec(temperature=1.7, top_k=5, top_p=0.8, min_p=0.1),
        SamplingSpec(top_k=10**9),
    ],
    ids=str,
)
def test_draw_frequencies_follow_oracle(spec: SamplingSpec) -> None:
    """The inverse of the cumulative sum at evenly spaced points is the distribution itself, up to one point per token."""
    row, points = torch.tensor(LOGITS), 2000
    counts = Counter(draw(row, spec, (i + 0.5) / points) for i in range(points))
    for token, probability in enumerate(oracle_distribution(LOGITS, spec)):
        assert counts[token] == pytest.approx(probability * points, abs=1.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-4, 1e-3])
def test_draw_tiny_temperature_takes_the_best(dtype: torch.dtype, temperature: float) -> None:
    row = torch.tensor([1.0, 4.0, -math.inf, 3.5]).to(dtype).float()
    spec = SamplingSpec(temperature=temperature)
    assert {draw(row, spec, u) for u in (0.0, 0.3, 1 - 2**-53)} == {1}


@pytest.mark.parametrize(
    ("spec", "greedy"),
    [
        (SamplingSpec(temperature=0), True),
        (SamplingSpec(temperature=1e-40), True),
        (SamplingSpec(temperature=1e-6), True),
        (SamplingSpec(temperature=1e-4), False),
        (SamplingSpec(top_p=0), True),
        (SamplingSpec(top_p=1e-9), False),
        (SamplingSpec(top_k=1), True),
        (SamplingSpec(min_p=1), True),
        (SamplingSpec(), False),
    ],
    ids=str,
)
def test_is_greedy_at_the_edges(spec: SamplingSpec, greedy: bool) -> None:
    assert is_greedy(spec) is greedy


def test_draw_tiny_top_p_keeps_one_token() -> None:
    row = torch.tensor([1.0, 4.0, 4.0])
    assert {draw(row, SamplingSpec(top_p=1e-9), u) for u in (0.0, 0.5, 0.999)} == {1}


def test_draw_never_lands_on_a_masked_token() -> None:
    row = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert {draw(row, SamplingSpec(), u) for u in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53)} == {1, 3}


def test_draw_wide_nucleus_grows_past_its_first_guess() -> None:
    """A flat row: half of it is the nucleus, by lowest ids, far more than the first guess."""
    row = torch.zeros(5000)
    spec = SamplingSpec(top_p=0.5)
    assert max(draw(row, spec, u) for u in (0.1, 0.9, 0.9999)) < 2500
    assert draw(row, spec, 0.9999) == 2499


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_largest_breaks_ties_by_lowest_id(k: int) -> None:
    ids = largest(torch.tensor([1.0, 7.0, 7.0, 1.0, 9.0, 7.0, -math.inf, 1.0]), k).tolist()
    assert ids == [4, 1, 2, 5, 0, 3, 7, 6][:k]


def test_uniform_depends_on_seed_and_index_only_and_is_even() -> None:
    values = [uniform(seed, index) for seed in range(40) for index in range(50)]
    assert len(set(values)) == 2000
    assert all(0 <= v < 1 for v in values)
    assert all(abs(sum(v < q / 10 for v in values) / 2000 - q / 10) < 0.04 for q in range(1, 10))
    assert uniform(3, 7) == uniform(3, 7)
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)
    assert all(a != b for a, b in pairwise(values))
