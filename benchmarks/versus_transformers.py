"""W1 side by side: this engine, and plain transformers generating in batches that recompute the prefix each time.

    python -m benchmarks.versus_transformers [--check]

Both run in one process, one after the other, same weights, dtype and thread count, greedy, 64 new tokens per ticket. The
transformers side is what one writes without a prefix cache: left-padded batches through `generate`.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.workload_data import FanOut, build
from benchmarks.workloads import fan_out
from sglang_dsl import RunOptions

BAR = 3.0


def ours(work: FanOut, backend: str) -> tuple[float, int]:
    """(seconds, generated tokens)."""
    began = time.perf_counter()
    result = fan_out.run(work, options=RunOptions(backend=backend, seed=0))
    return time.perf_counter() - began, result.usage.generated_tokens


def theirs(work: FanOut, model: str, batch: int) -> tuple[float, int]:
    """(seconds, generated tokens) of `transformers` alone, in batches of `batch`."""
    import torch

    from sglang_dsl.runtime.model.load import read_model
    from sglang_dsl.runtime.supply import locate
    from sglang_dsl.runtime.text.load import load_text
    from sglang_dsl.runtime.text.tokenizer import TextPiece

    files = locate(model)
    tokenizer = load_text(files.path, files.fingerprint).tokenizer
    plain = read_model(files.path, torch.bfloat16).eval()
    prompts = [tokenizer.encode_segment([TextPiece(work.prefix + suffix, control=True)]) for suffix in work.suffixes]
    width = max(map(len, prompts))
    pad = plain.config.eos_token_id if isinstance(plain.config.eos_token_id, int) else 0
    began = time.perf_counter()
    generated = 0
    for first in range(0, len(prompts), batch):
        chunk = prompts[first : first + batch]
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in chunk])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in chunk])
        with torch.inference_mode():
            out = plain.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=work.max_new,
                min_new_tokens=work.max_new,
                do_sample=False,
                pad_token_id=pad,
            )
        generated += (out.shape[1] - width) * len(chunk)
    return time.perf_counter() - began, generated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch", type=int, default=8, help="batch size of the transformers side")
    parser.add_argument("--tickets", type=int, default=40)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()

    whole = build(0).w1
    work = FanOut(whole.prefix, whole.suffixes[: chosen.tickets], whole.max_new)
    backend = f"local:{chosen.model}"
    ours(FanOut("warm up", ("a", "b"), 4), backend)
    our_s, our_tokens = ours(work, backend)
    print(f"sglang_dsl    {our_s:7.1f} s  {our_tokens} tokens", flush=True)
    their_s, their_tokens = theirs(work, chosen.model, chosen.batch)
    print(f"transformers  {their_s:7.1f} s  {their_tokens} tokens, batches of {chosen.batch}")
    ratio = their_s / our_s
    print(f"ratio {ratio:.1f}x (bar: {BAR}x)")
    return 1 if chosen.check and ratio < BAR else 0


if __name__ == "__main__":
    sys.exit(main())
