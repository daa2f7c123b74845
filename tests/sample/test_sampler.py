"""The sampler over batches: penalties against an oracle, batch-mates that do not matter, bans that yield."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import SamplingError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.sample.sampler import (
    Draw,
    SampledSequence,
    apply_masks,
    empty_masks,
    sample,
)

pytestmark = pytest.mark.engine

GREEDY = SamplingSpec(temperature=0)


class Only:
    """A matcher that allows the same ids for ever."""

    def __init__(self, *ids: int) -> None:
        self._ids = ids

    def accept(self, token_id: int) -> bool:
        return token_id in self._ids

    def fork(self) -> Only:
        return Only(*self._ids)

    may_end = must_end = False

    def fill_mask(self, row: Any) -> None:
        row[:] = 0
        for i in self._ids:
            row[i // 32] |= 1 << (i % 32)


def sequence(spec: SamplingSpec, vocab: int, prompt: tuple[int, ...] = (), **options: Any) -> SampledSequence:
    options = {"seed": 0, "end_ids": frozenset[int](), "matcher": None} | options
    seed = options.pop("seed")
    return SampledSequence(spec, seed, prompt, vocab_size=vocab, **options)


def one(row: list[float], made: SampledSequence, generated: int = 0) -> int | Exception:
    return sample(torch.tensor([row]), [Draw(0, made, generated)])[0]


def oracle_penalised(
    logits: list[float], prompt: tuple[int, ...], output: list[int], spec: SamplingSpec
) -> list[float]:
    values = list(logits)
    for i in {*prompt, *output}:
        values[i] = values[i] / spec.repetition_penalty if values[i] > 0 else values[i] * spec.repetition_penalty
    for i in set(output):
        values[i] -= spec.frequency_penalty * output.count(i) + spec.presence_penalty
    return values


@pytest.mark.parametrize("neighbours", [(), (0,), (1,), (0, 2)], ids=str)
def test_penalties_four_steps_equal_oracle_whatever_the_batch(neighbours: tuple[int, ...]) -> None:
    """Prompt a a b over five tokens with fixed logits; unpenalised rows stand before and behind."""
    logits, prompt = [2.0, 1.5, 1.4, -0.5, 1.3], (0, 0, 1)
    spec = SamplingSpec(temperature=0, repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3)
    made, plain, output = sequence(spec, 5, prompt), sequence(GREEDY, 5, prompt), []
    for step in range(4):
        places = [plain] * (len(neighbours) + 1)
        mine = max(neighbours, default=0) if neighbours else 0
        places[min(mine, len(places) - 1)] = made
        tokens = sample(torch.tensor([logits] * len(places)), [Draw(i, s, step) for i, s in enumerate(places)])
        values = oracle_penalised(logits, prompt, output, spec)
        expected = min(range(5), key=lambda i: (-values[i], i))
        for place, token in zip(places, tokens, strict=True):
            assert token == (expected if place is made else 0)
        made.accept(expected)
        output.append(expected)
    assert len(set(output)) > 2


def test_penalties_do_not_change_the_given_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    made = sequence(SamplingSpec(temperature=0, repetition_penalty=9.0, logit_bias=((0, 50.0),)), 3, (2,))
    assert sample(logits, [Draw(0, made, 0)]) == [0]
    assert logits.tolist() == [[1.0, 2.0, 3.0]]


def test_seeded_tokens_do_not_depend_on_batch_mates_order_or_size() -> None:
    """R(seed 42) alone, beside unseeded and greedy rows, as row 0, 3 and 7 of eight."""
    generator = torch.Generator().manual_seed(0)
    mine = torch.randn(1, 300, generator=generator) * 3
    spec = SamplingSpec(temperature=2.0, top_p=0.95)

    def tokens(place: int, size: int) -> list[int | Exception]:
        result = []
        for step in range(20):
            rows = torch.randn(size, 300, generator=generator) * 3
            rows[place] = mine
            seqs = [sequence(replace(spec, top_k=i), 300, seed=1000 + i) for i in range(size)]
            seqs[-1 if place == 0 and size > 1 else 0] = sequence(GREEDY, 300)
            seqs[place] = sequence(spec, 300, seed=42)
            result.append(sample(rows, [Draw(i, s, step) for i, s in enumerate(seqs)])[place])
        return result

    alone = tokens(0, 1)
    assert len(set(alone)) > 5
    assert all(tokens(place, size) == alone for place, size in ((0, 8), (3, 8), (7, 8), (1, 2), (0, 40)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    row = torch.full((1, 50_000), -1.0, dtype=dtype)
    row[0, [47_000, 31_111, 49_999]] = 5.0
    assert sample(row, [Draw(0, sequence(GREEDY, 50_000), 0)]) == [31_111]


def test_mixed_batch_greedy_and_random_rows_are_safe() -> None:
    rows = torch.tensor([[0.0, 9.0, 0.0]] * 2)
    specs = (GREEDY, SamplingSpec(temperature=1.0))
    tokens = sample(rows, [Draw(i, sequence(s, 3, seed=4), 0) for i, s in enumerate(specs)])
    assert tokens[0] == 1
    assert tokens[1] in {0, 1, 2}


@pytest.mark.parametrize(
    ("row", "message"),
    [([-math.inf] * 3, "every token is masked"), ([1.0, math.nan, 0.0], "NaN")],
    ids=["masked", "nan"],
)
@pytest.mark.parametrize("spec", [GREEDY, SamplingSpec()], ids=["greedy", "random"])
def test_row_without_a_token_is_that_rows_error_only(row: list[float], message: str, spec: SamplingSpec) -> None:
    tokens = sample(torch.tensor([row, [0.0, 50.0, 0.0]]), [Draw(i, sequence(spec, 3), 0) for i in range(2)])
    assert isinstance(tokens[0], SamplingError)
    assert message in str(tokens[0])
    assert tokens[1] == 1


@pytest.mark.parametrize("spec", [GREEDY, SamplingSpec()], ids=["greedy", "random"])
def test_infinite_logit_is_taken(spec: SamplingSpec) -> None:
    assert one([0.0, math.inf, 3.0], sequence(spec, 3)) == 1


def test_logit_bias_bans_and_forces() -> None:
    assert one([9.0, 1.0, 0.0], sequence(SamplingSpec(temperature=0, logit_bias=((0, -100.0),)), 3)) == 1
    assert one([9.0, 1.0, 0.0], sequence(SamplingSpec(temperature=0, logit_bias=((2, 100.0),)), 3)) == 2


def test_ban_of_every_token_a_constraint_allows_yields_to_the_constraint() -> None:
    spec = SamplingSpec(temperature=0, logit_bias=((1, -100.0), (2, -100.0)))
    assert one([9.0, 1.0, 2.0, 8.0], sequence(spec, 4, matcher=Only(1, 2))) == 2
    assert one([9.0, 1.0, 2.0, 8.0], sequence(spec, 4, matcher=Only(1, 2, 3))) == 3


def test_min_tokens_holds_every_end_back_until_reached() -> None:
    spec = SamplingSpec(temperature=0, min_tokens=2, stop_token_ids=(3,))
    made = sequence(spec, 5, end_ids=frozenset({4}))
    row = [0.0, 1.0, 0.5, 8.0, 9.0]
    assert [one(row, made, generated) for generated in range(3)] == [1, 1, 4]


def test_min_tokens_with_ignore_eos_holds_stop_ids_only() -> None:
    spec = SamplingSpec(temperature=0, min_tokens=2, stop_token_ids=(3,), ignore_eos=True)
    made = sequence(spec, 5, end_ids=frozenset({4}))
    assert one([0.0, 1.0, 0.5, 9.0, 8.0], made, 0) == 4


@pytest.mark.parametrize(
    "spec", [SamplingSpec(logit_bias=((70001, 5.0),)), SamplingSpec(stop_token_ids=(10**9,))], ids=["bias", "stop"]
)
def test_ids_outside_the_vocabulary_are_refused(spec: SamplingSpec) -> None:
    with pytest.raises(SamplingError, match="outside the vocabulary of 49152"):
        sequence(spec, 49152)


def test_masks_touch_their_rows_only_and_padding_bits_nothing() -> None:
    logits = torch.zeros(3, 70)
    masks = empty_masks(2, 70)
    masks[0] = 0
    masks[0, 2] = 1 << 5  # token 69
    masks[1, 1] = -(1 << 31)  # token 63 of 32..63
    apply_masks(logits, masks, [0, 2])
    assert (logits[0] == 0).nonzero().flatten().tolist() == [69]
    assert (logits[1] == 0).all()
    assert (logits[2] == 0).nonzero().flatten().tolist() == [*range(32), *range(63, 70)]


def test_draws_may_share_a_row_of_logits() -> None:
    row = torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
    draws = [Draw(0, sequence(SamplingSpec(temperature=3.0), 50, seed=seed), 0) for seed in range(30)]
    tokens = sample(row, draws)
    assert len(set(tokens)) > 10
    assert [sample(row, [d])[0] for d in draws] == tokens
