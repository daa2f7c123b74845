"""Mixed programs with cancellations and faults, for a while: nothing may leak, hang or grow.

    python benchmarks/soak.py [--minutes 10]

Each round opens a mock (the production engine with a scripted model, a small pool and forced retraction), runs programs
that fan out, race, choose, fail, are cancelled and are left in mid-stream, and closes it. After each round every page is
back, no lease lives and no thread is left. At the end the slope of the resident memory after the first fifth of the time
has to stay under 1 MB per minute. Exits with 1 where any of this does not hold.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
from collections.abc import Callable
from statistics import linear_regression
from zlib import crc32

import psutil

from sglang_dsl import DslError, State, gen, program, select, user
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.backends.mock import MockExecutor, mock
from sglang_dsl.runtime.backends.mock.log import Call
from sglang_dsl.runtime.engine.config import EngineConfig

PREAMBLE = " ".join(f"rule{i}" for i in range(300))
PROGRAMS_PER_ROUND = 60
SLOPE_LIMIT_MB = 1.0


@program
def fan_out(s: State, topic: str, branches: int) -> list[str]:
    s += user(PREAMBLE)
    answer = gen("answer", max_tokens=24)
    parts = s.fork(branches)
    for i, part in enumerate(parts):
        part += user(f"{topic} {i}")
        part += answer
    return list(parts.join(answer))


@program
def race(s: State, topic: str, branches: int) -> list[str]:
    s += user(PREAMBLE)
    answer = gen("answer", max_tokens=64)
    parts = s.fork(branches)
    for i, part in enumerate(parts):
        part += user(f"{topic} {i}")
        part += answer
    return list(parts.first(answer, 2))


@program
def choose(s: State, topic: str, branches: int) -> str:
    s += user(f"{PREAMBLE} {topic}")
    for turn in range(branches // 2):
        s += user(f"turn {turn}")
        s += select(f"choice{turn}", ["yes", "no", "yes please", "nothing"])
        s += gen(f"answer{turn}", max_tokens=16, stop=["w9", "w8 w7"])
    return s.text


@program
def fail_some(s: State, topic: str, branches: int) -> list[object]:
    s += user(topic)
    answer = gen("answer", max_tokens=24)
    parts = s.fork(branches)
    for i, part in enumerate(parts):
        part += user("BOOM" if i % 3 == 1 else f"fine {i}")
        part += answer
    return list(parts.settle(answer))


PROGRAMS = (fan_out, race, choose, fail_some)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    process = psutil.Process()
    began = time.monotonic()
    samples: list[tuple[float, float]] = []
    rounds = 0
    while (minutes := (time.monotonic() - began) / 60) < options.minutes:
        run_round(rng)
        rounds += 1
        gc.collect()
        samples.append((minutes, process.memory_info().rss / 1e6))
        if rounds % 20 == 1:
            print(f"{minutes:6.2f} min  {rounds:>5} rounds  {samples[-1][1]:8.1f} MB", flush=True)
    settled = [sample for sample in samples if sample[0] >= options.minutes / 5]
    slope = linear_regression(*zip(*settled, strict=True)).slope if len(settled) > 2 else 0.0
    print(f"{rounds} rounds of {PROGRAMS_PER_ROUND} programs, {slope:+.3f} MB per minute")
    return 0 if slope < SLOPE_LIMIT_MB else 1


def run_round(rng: random.Random) -> None:
    """One mock from its opening to its close.

    Raises:
        RuntimeError: something is left behind. Any error of a program that is none of ours.
    """
    threads = threading.active_count()
    config = EngineConfig(
        max_batch_tokens=256, max_running=32, prefill_chunk_tokens=64, retract_every_steps=rng.choice([None, 3, 11])
    )
    backend = mock(_answer, fail_if="BOOM", num_pages=6000, context_tokens=4000, config=config)
    try:
        for number in range(PROGRAMS_PER_ROUND):
            _ways(rng)(backend, rng, number)
        _check_books(backend)
    finally:
        backend.close()
    if threading.active_count() > threads:
        raise RuntimeError(f"threads are left: {[thread.name for thread in threading.enumerate()]}")


def _answer(call: Call) -> str:
    """A length that follows from the prompt."""
    words = crc32(call.prompt.encode()) % 40
    return " ".join(f"w{(words * i) % 10}" for i in range(words + 1))


def _ways(rng: random.Random) -> Callable[[MockExecutor, random.Random, int], None]:
    return rng.choices((_run, _cancel, _leave_stream), (6, 2, 2))[0]


def _run(backend: MockExecutor, rng: random.Random, number: int) -> None:
    try:
        rng.choice(PROGRAMS).run(f"topic {number}", rng.randrange(2, 24), options=_options(backend, number))
    except DslError:
        return


def _cancel(backend: MockExecutor, rng: random.Random, number: int) -> None:
    running = rng.choice(PROGRAMS).start(f"topic {number}", rng.randrange(2, 24), options=_options(backend, number))
    time.sleep(rng.random() * 0.01)
    running.cancel()
    running.result(60, raising=False)


def _leave_stream(backend: MockExecutor, rng: random.Random, number: int) -> None:
    stream = rng.choice(PROGRAMS).stream(f"topic {number}", rng.randrange(2, 24), options=_options(backend, number))
    for pieces, _ in enumerate(stream):
        if pieces == 5:
            break


def _options(backend: MockExecutor, number: int) -> RunOptions:
    return RunOptions(backend=backend, seed=number)


def _check_books(backend: MockExecutor) -> None:
    deadline = time.monotonic() + 30
    while backend.engine.snapshot().live:
        if time.monotonic() > deadline:
            raise RuntimeError(f"requests do not end: {backend.engine.snapshot()}")
        time.sleep(0.001)
    backend.engine.check()
    pages = backend.engine.snapshot().scheduler
    if pages.free_pages + pages.evictable_pages != pages.total_pages or pages.leases:
        raise RuntimeError(f"pages or leases are left: {pages}")
    health = backend.engine.health()
    if health.status != "ok":
        raise RuntimeError(f"the engine is not well: {health.reasons}")


if __name__ == "__main__":
    sys.exit(main())
