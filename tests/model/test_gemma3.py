"""Gemma 3 270M, a second real model: most of its layers see a sliding window of 512 tokens only. Skipped unless it was pulled."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

from examples.support_desk import preamble
from sglang_dsl.errors import ModelNotFoundError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.model.load import read_model
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.supply import locate

NEW_TOKENS = 12
GREEDY = SamplingSpec(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)


def test_prompts_longer_than_the_window_over_a_shared_prefix_equal_transformers_cold_and_warm() -> None:
    try:
        files = locate("gemma3-270m")
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    with open_engine("gemma3-270m", ModelOptions(dtype="float32", packed_linears=False)) as engine:
        tokenizer = engine.text.tokenizer
        shared = [tokenizer.bos_id, *tokenizer.encode(preamble())[:900]]
        prompts = [shared + tokenizer.encode(end) for end in (" The next ticket is about", " In short,", " Answer:")]
        cold = engine.generate_batch(prompts, GREEDY)
        warm = engine.generate_batch(prompts, GREEDY)
    reference = read_model(files.path, torch.float32).eval()
    for prompt, first, second in zip(prompts, cold, warm, strict=True):
        with torch.inference_mode():
            out = reference.generate(
                input_ids=torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert list(first.token_ids) == list(second.token_ids) == out[0, len(prompt) :].tolist()
        assert second.cached_tokens == len(prompt) - 1
