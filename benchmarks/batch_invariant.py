"""What batch-invariant mode costs: the same requests in the fast way and in the invariant one, side by side.

    python -m benchmarks.batch_invariant [--model smollm2] [--rounds 3]

One thread, float32, CPU time of the engine's thread (a busy machine changes it little); the two ways take turns, the median
round counts. Three shapes: a prompt of 512 tokens, 32 tokens decoded alone, 32 tokens decoded in a batch of 16 that shares a
prompt of 256.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.model.options import ModelOptions

PROMPT_TOKENS, SHARED_TOKENS, NEW_TOKENS, BATCH = 512, 256, 32, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engines = {way: _open(options.model, batch_invariant=way == "invariant") for way in ("fast", "invariant")}
    print(f"{options.model}, float32, one thread; CPU seconds, median of {options.rounds}")
    print(f"{'':<34}{'fast':>9}{'invariant':>11}{'ratio':>8}")
    for name, work in SHAPES.items():
        spent: dict[str, list[float]] = {way: [] for way in engines}
        for _ in range(options.rounds):
            for way, engine in engines.items():
                spent[way].append(_cpu_seconds(engine, work))
        fast, invariant = (statistics.median(spent[way]) for way in engines)
        print(f"{name:<34}{fast:>9.3f}{invariant:>11.3f}{invariant / fast:>8.2f}")
    for engine in engines.values():
        engine.close()


def _open(model: str, *, batch_invariant: bool) -> Engine:
    options = ModelOptions(
        dtype="float32", threads=1, kv_bytes=256 << 20, self_check=False, batch_invariant=batch_invariant
    )
    return open_engine(model, options, EngineConfig(gather_s=0.0))


def _cpu_seconds(engine: Engine, work: Callable[[Engine], None]) -> float:
    """Of this process, whose other threads wait."""
    engine.flush()
    start = time.process_time()
    work(engine)
    return time.process_time() - start


def _prompt(count: int, last: int = 0) -> list[int]:
    """Ids of plain words; `last` makes ends differ."""
    return [1000 + (i * i) % 9000 for i in range(count - 1)] + [1000 + last]


def _sampling(tokens: int) -> SamplingSpec:
    return SamplingSpec(temperature=0, max_tokens=tokens, ignore_eos=True)


def _prefill(engine: Engine) -> None:
    engine.generate(_prompt(PROMPT_TOKENS), _sampling(1))


def _decode_alone(engine: Engine) -> None:
    engine.generate(_prompt(1), _sampling(NEW_TOKENS))


def _decode_batch(engine: Engine) -> None:
    engine.generate_batch([_prompt(SHARED_TOKENS, last=i) for i in range(BATCH)], _sampling(NEW_TOKENS))


SHAPES: dict[str, Callable[[Engine], None]] = {
    f"prompt of {PROMPT_TOKENS}": _prefill,
    f"{NEW_TOKENS} tokens, alone": _decode_alone,
    f"{NEW_TOKENS} tokens x {BATCH}, {SHARED_TOKENS} shared": _decode_batch,
}


if __name__ == "__main__":
    main()
