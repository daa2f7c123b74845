"""CPU time of one turn of the engine's loop around the model: schedule, text and stops, results. No tensors, no sampling.

    python benchmarks/loop.py [--steps 300]

Decode steps of a full batch over a shared prefix of 3,000 tokens, pages of one token. `output` is what a row's new token
costs in text, stops, scores and receivers; `schedule` is the part that `benchmarks/engine.py` measures alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import Future

from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.engine.metrics import VirtualClock
from sglang_dsl.runtime.schedule.step import Sampled, StepPlan, StepResult, WorkerInfo
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate, ChatTemplate, PieceTokenizer, Tokenizer

PREFIX_TOKENS = 3000
STOPS = {"no stops": (), "3 stop strings": ("green-light", "###", "</answer>")}


class NoModel:
    """A Worker that answers each row with the next letter at once."""

    def __init__(self, vocab_size: int) -> None:
        self.info = WorkerInfo(
            model="none",
            fingerprint="none",
            context_tokens=1 << 16,
            vocab_size=vocab_size,
            page_size=1,
            num_pages=1 << 18,
            kv_bytes_per_token=1,
            kv_layout="none",
        )

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        raise NotImplementedError("this benchmark has no constraints")

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult([Sampled(p.seq_id, 97 + p.generated % 26) for p in plan.samples], (), 0.001)

    def close(self) -> None:
        pass


class PlainText:
    def __init__(self) -> None:
        self.tokenizer: Tokenizer = PieceTokenizer()
        self.template: ChatTemplate = ChatMlTemplate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    print(f"{'rows':>5}  {'stops':<15} {'schedule us':>12} {'output us':>10}   output per row")
    for rows in (16, 64):
        for name, stop in STOPS.items():
            schedule_us, output_us = turn_cost(rows, steps, stop)
            print(f"{rows:>5}  {name:<15} {schedule_us:>12.1f} {output_us:>10.1f}   {output_us / rows:.2f} us")


def turn_cost(rows: int, steps: int, stop: Sequence[str]) -> tuple[float, float]:
    """Mean microseconds per turn of planning with bookkeeping, and of output."""
    text = PlainText()
    sampling = SamplingSpec(temperature=0, max_tokens=steps, stop=tuple(stop), ignore_eos=True)
    prefix = [97 + i % 26 for i in range(PREFIX_TOKENS)]
    config = EngineConfig(max_running=rows, max_batch_tokens=8192)
    worker = NoModel(text.tokenizer.vocab_size)
    with Engine(worker, text, config=config, clock=VirtualClock(), background=False) as engine:
        engine.generate_batch([[*prefix, 200, i] for i in range(rows)], sampling)
        histograms = engine.snapshot().histograms
    return histograms["schedule_s"].mean * 1e6, histograms["output_s"].mean * 1e6


if __name__ == "__main__":
    main()
