"""Raw log-probabilities."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.runtime.sample.sampler import logprobs, token_score

pytestmark = pytest.mark.engine

PIECES = [b"ok", b"\xf0\x9f", b"\x99\x82", b"\x98\x80", b"!"]


def test_token_score_bytes_of_partial_characters_stay_raw() -> None:
    row = torch.tensor([0.0, 1.0, 5.0, 4.0, -1.0])
    score = token_score(row, 2, 2, PIECES.__getitem__)
    assert score.token_bytes == bytes([153, 130])
    assert [(i, b) for i, _, b in score.top] == [(2, bytes([153, 130])), (3, bytes([152, 128]))]
    assert score.logprob == pytest.approx(float(row.log_softmax(0)[2]))


def test_token_score_without_alternatives_has_the_chosen_token_only() -> None:
    assert token_score(torch.zeros(5), 4, 0, PIECES.__getitem__).top == ()


@pytest.mark.parametrize("top", [3, 99])
def test_logprobs_top_is_ordered_by_value_then_id(top: int) -> None:
    chosen, best = logprobs(torch.tensor([1.0, 3.0, 1.0, 3.0]), [2, 2, 0], top)
    assert chosen[0] == chosen[1] == chosen[2]
    assert [i for i, _ in best] == [1, 3, 0, 2][:top]


def test_logprobs_of_low_precision_logits_are_computed_in_float32() -> None:
    row = torch.linspace(-8, 8, 5000, dtype=torch.bfloat16)
    chosen, _ = logprobs(row, [4999], 0)
    assert chosen[0] == pytest.approx(float(row.double().log_softmax(0)[4999]), abs=1e-4)
