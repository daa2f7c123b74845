"""CPU time of a step's bookkeeping: schedule + tree + page accounting, without tensors, sampling or text.

    python benchmarks/engine.py [--check] [--steps 400]

Decode steps of a full batch over a shared prefix of 3,000 tokens, page size 1 (one page per row and step: the hardest case); the
same while in each step one request ends and another begins; and the support agent's shape (40 prompts of 3,012 + 51 tokens, 64
new each) from start to end. Thread CPU time, so a busy machine changes it little; the median of the steps counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.cache.pages import PagePool
from sglang_dsl.runtime.cache.prefix_cache import LeaseTable
from sglang_dsl.runtime.cache.tree import RadixTree
from sglang_dsl.runtime.schedule.request import GenerateRequest
from sglang_dsl.runtime.schedule.scheduler import Scheduler
from sglang_dsl.runtime.schedule.step import Sampled, SchedulerConfig, StepPlan, StepResult, WorkerFacts
from sglang_dsl.runtime.text.output import OutputText
from sglang_dsl.runtime.text.tokenizer import PieceTokenizer

PREFIX_TOKENS, SUFFIX_TOKENS, NEW_TOKENS, BRANCHES = 3012, 51, 64, 40
LIMITS_US = {16: 150.0, 64: 400.0}
W1_SECONDS, W1_SHARE = 60.0, 0.003


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a limit is broken")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    good = True
    print(f"{'rows':>5} {'step us':>8} {'commit us':>9} {'sum us':>8} {'limit':>6}   per row: plan, commit")
    for rows, limit in LIMITS_US.items():
        plan_us, commit_us = decode_cost(rows, options.steps)
        good &= plan_us + commit_us <= limit
        print(
            f"{rows:>5} {plan_us:>8.1f} {commit_us:>9.1f} {plan_us + commit_us:>8.1f} {limit:>6.0f}   "
            f"{plan_us / rows:.2f}, {commit_us / rows:.2f} us"
        )
    prompt = PREFIX_TOKENS + SUFFIX_TOKENS
    print(
        f"\nthe same, and in each step a request of {prompt} tokens comes (`add`, match, lock) and one goes (`finish`):"
    )
    for rows in LIMITS_US:
        print(f"{rows:>5} {churn_cost(rows, options.steps):>27.1f}")
    spent = support_agent_cost()
    share = spent["tree"] / W1_SECONDS
    good &= share < W1_SHARE
    print(f"\nsupport agent, {BRANCHES} branches, {NEW_TOKENS} steps; CPU ms over the whole run:")
    for name, seconds in spent.items():
        print(f"  {name:<22} {seconds * 1e3:8.2f}")
    print(f"  tree bookkeeping is {share:.4%} of a run of {W1_SECONDS:.0f} s (limit {W1_SHARE:.1%})")
    print(f"\nbeside it, per row: text {text_cost():.2f} us; sampling {sampling_cost()}")
    return 0 if good or not options.check else 1


def decode_cost(rows: int, steps: int) -> tuple[float, float]:
    """Median microseconds of `step` and of `commit` while `rows` sequences decode."""
    scheduler = _scheduler(rows, PREFIX_TOKENS + rows * (SUFFIX_TOKENS + steps + 2))
    for branch in range(rows):
        scheduler.add(_request(branch, steps + 2), 0.0)
    _run(scheduler, 1)
    planning, committing = [], []
    for _ in range(steps):
        start = time.thread_time_ns()
        plan = scheduler.step(0.0)
        middle = time.thread_time_ns()
        assert plan is not None
        result = _result(plan)
        after = time.thread_time_ns()
        scheduler.commit(plan, result, 0.0)
        committing.append((time.thread_time_ns() - after) / 1e3)
        planning.append((middle - start) / 1e3)
    return statistics.median(planning), statistics.median(committing)


def churn_cost(rows: int, steps: int) -> float:
    """Median microseconds of a whole turn while requests come and go: `add`, `step`, `commit`, `finish`."""
    scheduler = _scheduler(rows, PREFIX_TOKENS + 4 * rows * (SUFFIX_TOKENS + rows))
    born: dict[str, int] = {}
    spent = []
    for turn in range(steps + 2 * rows):
        request = _request(turn, rows + 8)
        start = time.thread_time_ns()
        if len(born) < rows:
            scheduler.add(request, 0.0)
            born[str(turn)] = turn
        plan = scheduler.step(0.0)
        middle = time.thread_time_ns()
        assert plan is not None
        result = _result(plan)
        after = time.thread_time_ns()
        scheduler.commit(plan, result, 0.0)
        oldest = next(iter(born))
        if len(born) == rows:
            scheduler.finish(oldest, turn - born.pop(oldest))
        spent.append((middle - start + time.thread_time_ns() - after) / 1e3)
    return statistics.median(spent[2 * rows :])


def support_agent_cost() -> dict[str, float]:
    """CPU seconds of the whole run by part. Parts are measured by wrapping them, which adds a little to each."""
    scheduler = _scheduler(BRANCHES, PREFIX_TOKENS + BRANCHES * (SUFFIX_TOKENS + NEW_TOKENS))
    with _timed() as spent:
        start = time.thread_time()
        for branch in range(BRANCHES):
            scheduler.add(_request(branch, NEW_TOKENS), 0.0)
        left = dict.fromkeys(range(BRANCHES), NEW_TOKENS)
        while left:
            plan = scheduler.step(0.0)
            assert plan is not None
            for progress in scheduler.commit(plan, _result(plan), 0.0):
                branch = int(progress.request_id)
                left[branch] -= progress.kind == "token"
                if not left[branch]:
                    scheduler.finish(progress.request_id, NEW_TOKENS)
                    del left[branch]
        total = time.thread_time() - start
    return {"total": total, **spent}


def text_cost(tokens: int = 2000) -> float:
    """Microseconds per token of incremental UTF-8, stop matching and bookkeeping of one sequence's output."""
    tokenizer = PieceTokenizer()
    ids = [tokenizer.intern(f" word{i % 97}") for i in range(tokens)]
    sampling = SamplingSpec(max_tokens=tokens + 1, stop=("\n\n", "END"))
    output = OutputText(tokenizer, sampling)
    start = time.thread_time()
    for token_id in ids:
        output.feed(token_id)
    return (time.thread_time() - start) / tokens * 1e6


def sampling_cost(rows: int = 64, vocab_size: int = 49152) -> str:
    """Microseconds per row of seeded top-p sampling, on this CPU; a note where torch is missing."""
    try:
        import torch

        from sglang_dsl.runtime.sample.sampler import Draw, SampledSequence, sample
    except ImportError:
        return "not measured (the engine extra is not installed)"
    torch.set_num_threads(1)
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0))
    costs = []
    for spec in (SamplingSpec(temperature=0.0), SamplingSpec(temperature=0.8, top_p=0.95)):
        one = SampledSequence(spec, 7, (1, 2), vocab_size=vocab_size, end_ids=frozenset((2,)))
        draws = [Draw(row, one, 3) for row in range(rows)]
        sample(logits, draws)
        start = time.thread_time()
        for _ in range(5):
            sample(logits, draws)
        costs.append((time.thread_time() - start) / 5 / rows * 1e6)
    return f"greedy {costs[0]:.1f} us, top-p {costs[1]:.1f} us ({rows} rows, vocabulary {vocab_size})"


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """Time the outermost calls into tree, pool and leases."""
    spent: dict[str, float] = defaultdict(float)
    parts = {
        "tree": (RadixTree, ("match", "peek", "overlap", "insert", "insert_pending", "commit_pending", "acquire", "release", "move", "evict")),
        "pool": (PagePool, ("allocate_each", "free", "give")),
        "leases": (LeaseTable, ("open", "count_down", "follow")),
    }  # fmt: skip
    saved = [(owner, name, getattr(owner, name)) for owner, names in parts.values() for name in names]
    for part, (owner, names) in parts.items():
        for name in names:
            setattr(owner, name, _timing(getattr(owner, name), spent, part))
    try:
        yield spent
    finally:
        for owner, name, method in saved:
            setattr(owner, name, method)


def _timing(method: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    @wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            spent[part] += time.thread_time() - start

    return timed


def _scheduler(rows: int, pages: int) -> Scheduler:
    config = SchedulerConfig(max_running=rows, max_batch_tokens=8192)
    return Scheduler(config, WorkerFacts(num_pages=pages + 64, page_size=1, context_tokens=8192))


def _request(branch: int, max_tokens: int) -> GenerateRequest:
    prompt = [i % 4093 for i in range(PREFIX_TOKENS)] + [(branch * 7919 + i) % 4093 for i in range(SUFFIX_TOKENS)]
    sampling = SamplingSpec(max_tokens=max_tokens, temperature=0.0)
    return GenerateRequest(request_id=str(branch), prompt_ids=prompt, sampling=sampling)


def _run(scheduler: Scheduler, steps: int) -> None:
    for _ in range(steps):
        plan = scheduler.step(0.0)
        assert plan is not None
        scheduler.commit(plan, _result(plan), 0.0)


def _result(plan: StepPlan) -> StepResult:
    return StepResult([Sampled(point.seq_id, (point.seq_id * 31 + point.generated) % 4093) for point in plan.samples])


if __name__ == "__main__":
    sys.exit(main())
