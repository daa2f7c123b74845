"""The scheduler's plans on a real forward: a random tiny Llama, whatever happens, says what it says alone."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.cache.keys import Namespace
from sglang_dsl.runtime.schedule.request import GenerateRequest, ScoreRequest

pytestmark = [pytest.mark.engine, pytest.mark.long]

VOCAB, NEAR_TIE, CLOSE = 97, 1e-3, 2e-3
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class PlainText:
    """No text is needed here: ids in, ids out."""

    vocab_size, bos_id, adds_bos, fingerprint = VOCAB, None, False, "ids"
    stop_ids = control_ids = frozenset[int]()

    def token_bytes(self, token_id):
        return bytes([token_id])


class NoCompiler:
    def close(self):
        pass


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def torch_worker(page_size):
    from sglang_dsl.runtime.backends.local.worker import TorchWorker
    from sglang_dsl.runtime.model.load import serve
    from sglang_dsl.runtime.model.options import ModelOptions

    options = ModelOptions(dtype="float32", device="cpu", packed_linears=False, page_size=page_size, kv_bytes=1 << 20)
    return TorchWorker(serve(tiny_llama(), options, fingerprint="tiny"), PlainText(), NoCompiler(), name="tiny")


class Alone:
    """The plain forward over one sequence."""

    def __init__(self):
        self.model = tiny_llama()

    def logprobs(self, ids):
        with torch.inference_mode():
            return self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].log_softmax(-1)

    def agrees(self, prompt, tokens):
        """Greedy at every position, or nearly tied where it first is not."""
        found = self.logprobs([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        for row, token in zip(found, tokens, strict=True):
            if int(row.argmax()) != token:
                return float(row.max() - row[token]) < NEAR_TIE
        return True


class ModelStorm:
    """Arrivals, forks with leases, scores, cancellations on a small pool."""

    def __init__(self, lab, page_size, seed):
        self.rng = random.Random(seed)
        self.it = lab(
            num_pages=320 // page_size, page_size=page_size, max_batch_tokens=48, max_running=10,
            prefill_chunk_tokens=16, cascade_min_tokens=16, retract_every_steps=9,
        )  # fmt: skip
        self.it.worker = torch_worker(page_size)
        self.stems = [self.ids(self.rng.randrange(5, 60)) for _ in range(4)]
        self.count = 0

    def ids(self, length):
        return tuple(self.rng.randrange(1, 96) for _ in range(length))

    def prompt(self):
        stem = self.rng.choice(self.stems)
        return stem[: self.rng.randrange(1, len(stem) + 1)] + self.ids(self.rng.choice((0, 1, 3, 20)))

    def add(self, request, lease=None):
        self.it.requests[request.request_id] = request
        self.it.tokens[request.request_id] = []
        self.it.scheduler.add(request, self.it.now)

    def generate(self, prompt, **more):
        self.count += 1
        sampling = SamplingSpec(max_tokens=self.rng.randrange(1, 9), **GREEDY)
        self.add(GenerateRequest(request_id=f"g{self.count}", prompt_ids=prompt, sampling=sampling, **more))

    def arrive(self):
        kind = self.rng.random()
        if kind < 0.5:
            self.generate(self.prompt())
        elif kind < 0.8:
            parent, children = self.prompt(), self.rng.randrange(2, 6)
            lease = self.it.scheduler.lease(parent, Namespace(), children)
            for _ in range(children):
                self.generate(parent + self.ids(self.rng.randrange(3)), lease=lease)
        else:
            self.count += 1
            stem = self.ids(2)
            choices = [stem[: self.rng.randrange(3)] + self.ids(self.rng.randrange(1, 4)) for _ in range(5)]
            self.add(ScoreRequest(request_id=f"s{self.count}", prompt_ids=self.prompt(), continuations=choices))

    def blow(self, steps):
        self.it.break_allocations(random.Random(steps), 0.03)
        for _ in range(steps):
            if self.rng.random() < 0.35 and self.it.scheduler.snapshot().waiting < 12:
                self.arrive()
            living = [name for name in self.it.requests if name not in self.it.ended]
            if living and self.rng.random() < 0.05:
                self.it.cancel(self.rng.choice(living))
            self.it.turn()
        self.it.mend_allocations()
        assert self.it.refusals > 10
        self.it.run()


@pytest.mark.parametrize("page_size", [1, 16])
def test_scheduler_in_a_storm_on_a_tiny_model_says_what_it_says_alone(lab, page_size):
    torch.set_num_threads(1)
    storm = ModelStorm(lab, page_size, 3)
    storm.blow(2000)
    alone, it, compared = Alone(), storm.it, 0
    for name, how in it.ended.items():
        request = it.requests[name]
        if how == "finished":
            assert alone.agrees(request.prompt_ids, it.tokens[name]), name
            compared += 1
        elif how == "scored":
            prompt = request.prompt_ids
            for continuation, logprobs in zip(request.continuations, it.progress[name][-1].scored[0], strict=True):
                rows = alone.logprobs([*prompt, *continuation])[len(prompt) - 1 : -1]
                expected = [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
                assert logprobs == pytest.approx(expected, abs=CLOSE), name
            compared += 1
    assert compared > 600
    assert it.scheduler.snapshot().retracted > 10
    it.expect_all_released()
