"""Mixed programs with cancellations and faults, for a while: nothing may leak, hang or grow.

    python benchmarks/soak.py [--minutes 10]

Rounds take turns. One kind opens a mock (the production engine with a scripted model, a small pool and forced retraction),
runs programs that fan out, race, choose, fail, are cancelled and are left in mid-stream, and closes it. The other runs the
same on one engine that lives for the whole time, whose model also fails single rows and whole steps. After each round every
page is back, no lease lives and no thread is left. At the end the slope of the resident memory after the first fifth of the
time has to stay under 1 MB per minute. Exits with 1 where any of this does not hold.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from statistics import linear_regression
from zlib import crc32

import psutil

from sglang_dsl import DslError, State, gen, program, select, user
from sglang_dsl.errors import SamplingError
from sglang_dsl.ir.execution import Executor
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions
from sglang_dsl.runtime.backends.interpreted import InterpretedExecutor
from sglang_dsl.runtime.backends.mock import mock
from sglang_dsl.runtime.backends.mock.calls import Call
from sglang_dsl.runtime.backends.mock.worker import MockText, MockTokenizer
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.schedule.step import Sampled, SamplePoint, Scored, StepPlan, StepResult, WorkerInfo

PREAMBLE = " ".join(f"rule{i}" for i in range(300))
PROGRAMS_PER_ROUND = 60
SLOPE_LIMIT_MB = 1.0
CONTEXT_TOKENS, NUM_PAGES, FAULT_EVERY_STEPS = 4000, 6000, 997


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


class WordWorker:
    """Implements `Worker`: says words that follow from the prompt, fails rows whose prompt says BOOM, and now and then a step."""

    def __init__(self, tokenizer: MockTokenizer) -> None:
        self.info = WorkerInfo(
            model="words",
            fingerprint="words",
            context_tokens=CONTEXT_TOKENS,
            vocab_size=tokenizer.vocab_size,
            page_size=1,
            num_pages=NUM_PAGES,
            kv_bytes_per_token=1,
            kv_layout="none",
        )
        self.faults = 0
        self._steps = 0
        self._tokenizer = tokenizer
        self._words = [tokenizer.intern(f" w{i}") for i in range(10)]
        self._lengths: dict[int, int] = {}

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def execute(self, plan: StepPlan) -> StepResult:
        for seq_id in plan.closes:
            self._lengths.pop(seq_id, None)
        for opened in plan.opens:
            said = self._tokenizer.show(opened.prompt_ids)
            self._lengths[opened.seq_id] = -1 if "BOOM" in said else crc32(said.encode()) % 40
        self._steps += 1
        if self._steps % FAULT_EVERY_STEPS == 0:
            self.faults += 1
            raise RuntimeError("a step that fails")
        scores = [Scored(point.key, [-0.1 - id_ % 7 for id_ in point.token_ids]) for point in plan.scores]
        return StepResult([self._sample(point) for point in plan.samples], scores, 0.0)

    def close(self) -> None:
        self._lengths.clear()

    def _sample(self, point: SamplePoint) -> Sampled:
        length = self._lengths[point.seq_id]
        if length < 0:
            return Sampled(point.seq_id, -1, error=SamplingError("a row that fails"))
        over = point.generated >= length
        return Sampled(point.seq_id, self._tokenizer.eos_id if over else self._words[(point.generated * length) % 10])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("sglang_dsl.engine").setLevel(logging.CRITICAL)  # steps fail on purpose
    rng = random.Random(options.seed)
    process = psutil.Process()
    began = time.monotonic()
    samples: list[tuple[float, float]] = []
    rounds = 0
    tokenizer = MockTokenizer()
    worker = WordWorker(tokenizer)
    lasting = Engine(worker, MockText(tokenizer), config=_config(11, health_window_s=1.0))
    threads = threading.active_count()
    while (minutes := (time.monotonic() - began) / 60) < options.minutes:
        if rounds % 2:
            run_programs(InterpretedExecutor("words", lasting, lambda: None), lasting, rng)
        else:
            run_mock(rng)
        rounds += 1
        _check_threads(threads + 1)  # the lasting engine's own
        gc.collect()
        samples.append((minutes, process.memory_info().rss / 1e6))
        if rounds % 20 == 1:
            print(f"{minutes:6.2f} min  {rounds:>5} rounds  {samples[-1][1]:8.1f} MB", flush=True)
    lasting.close()
    _check_threads(threads)
    print(f"one engine for {lasting.snapshot().submitted} requests; {worker.faults} steps failed")
    settled = [sample for sample in samples if sample[0] >= options.minutes / 5]
    slope = linear_regression(*zip(*settled, strict=True)).slope if len(settled) > 2 else 0.0
    print(f"{rounds} rounds of {PROGRAMS_PER_ROUND} programs, {slope:+.3f} MB per minute")
    return 0 if slope < SLOPE_LIMIT_MB else 1


def run_mock(rng: random.Random) -> None:
    """One mock from its opening to its close."""
    config = _config(rng.choice([None, 3, 11]))
    backend = mock(_answer, fail_if="BOOM", num_pages=NUM_PAGES, context_tokens=CONTEXT_TOKENS, config=config)
    try:
        run_programs(backend, backend.engine, rng)
        health = backend.engine.health()
        if health.status != "ok":
            raise RuntimeError(f"the engine is not well: {health.reasons}")
    finally:
        backend.close()


def run_programs(backend: Executor, engine: Engine, rng: random.Random) -> None:
    """Programs one after another, each its own way to the end.

    Raises:
        RuntimeError: something is left behind. Any error of a program that is none of ours.
    """
    for number in range(PROGRAMS_PER_ROUND):
        _ways(rng)(backend, rng, number)
    _check_books(engine)


def _config(retract_every_steps: int | None, **more: float) -> EngineConfig:
    return EngineConfig(
        max_batch_tokens=256, max_running=32, prefill_chunk_tokens=64, retract_every_steps=retract_every_steps, **more
    )


def _check_threads(most: int) -> None:
    if threading.active_count() > most:
        raise RuntimeError(f"threads are left: {[thread.name for thread in threading.enumerate()]}")


def _answer(call: Call) -> str:
    """A length that follows from the prompt."""
    words = crc32(call.prompt.encode()) % 40
    return " ".join(f"w{(words * i) % 10}" for i in range(words + 1))


def _ways(rng: random.Random) -> Callable[[Executor, random.Random, int], None]:
    return rng.choices((_run, _cancel, _leave_stream), (6, 2, 2))[0]


def _run(backend: Executor, rng: random.Random, number: int) -> None:
    with suppress(DslError):
        rng.choice(PROGRAMS).run(f"topic {number}", rng.randrange(2, 24), options=_options(backend, number))


def _cancel(backend: Executor, rng: random.Random, number: int) -> None:
    running = rng.choice(PROGRAMS).start(f"topic {number}", rng.randrange(2, 24), options=_options(backend, number))
    time.sleep(rng.random() * 0.01)
    running.cancel()
    running.result(60, raising=False)


def _leave_stream(backend: Executor, rng: random.Random, number: int) -> None:
    stream = rng.choice(PROGRAMS).stream(f"topic {number}", rng.randrange(2, 24), options=_options(backend, number))
    with suppress(DslError):
        for pieces, _ in enumerate(stream):
            if pieces == 5:
                break


def _options(backend: Executor, number: int) -> RunOptions:
    return RunOptions(backend=backend, seed=number)


def _check_books(engine: Engine) -> None:
    deadline = time.monotonic() + 30
    while engine.snapshot().live:
        if time.monotonic() > deadline:
            raise RuntimeError(f"requests do not end: {engine.snapshot()}")
        time.sleep(0.001)
    engine.check()
    pages = engine.snapshot().scheduler
    if pages.free_pages + pages.evictable_pages != pages.total_pages or pages.leases:
        raise RuntimeError(f"pages or leases are left: {pages}")
    if engine.health().status == "closed":
        raise RuntimeError(f"the engine has ended: {engine.health().reasons}")


if __name__ == "__main__":
    sys.exit(main())
