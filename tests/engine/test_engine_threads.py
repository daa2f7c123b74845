"""Many threads and coroutines on one engine at once."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_dsl.errors import CancelledError, EngineClosedError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.metrics import WallClock


def sampling(tokens):
    return SamplingSpec(temperature=0, max_tokens=tokens, ignore_eos=True)


def open_threaded(lab, page_model, **facts):
    config = EngineConfig(prefill_chunk_tokens=16, max_batch_tokens=64, max_running=16, retract_every_steps=7)
    return lab.engine(model=page_model, stepped=False, clock=WallClock(), config=config, **facts)


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_generate_stream_cancel_and_flush_get_the_right_answers(lab, page_model, seed):
    engine = open_threaded(lab, page_model, num_pages=600)

    def work(number):
        rng = random.Random(seed * 100 + number)
        for _ in range(12):
            prompt = [97 + rng.randrange(4) for _ in range(rng.randrange(1, 40))]
            tokens = rng.randrange(1, 10)
            match rng.randrange(5):
                case 0:
                    with engine.stream(prompt, sampling(tokens)) as stream:
                        stream.read(30)
                case 1:
                    engine.flush()
                case 2:
                    text = "".join(engine.stream(prompt, sampling(tokens)))
                    assert [ord(letter) for letter in text] == page_model.alone(prompt, tokens)
                case _:
                    result = engine.generate(prompt, sampling(tokens))
                    assert list(result.token_ids) == page_model.alone(prompt, tokens)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result(60)
    assert engine.health().status == "ok"
    lab.assert_clean()


def test_threads_and_coroutines_share_one_engine(lab, page_model):
    engine = open_threaded(lab, page_model)
    prompts = [[97 + i % 7, 98, 99 + i % 3] for i in range(60)]

    async def main(mine):
        results = await asyncio.gather(*(engine.agenerate(p, sampling(5)) for p in mine))
        return [list(result.token_ids) for result in results]

    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(lambda k: asyncio.run(main(prompts[k::3])), range(3)))
    for k in range(3):
        assert parts[k] == [page_model.alone(p, 5) for p in prompts[k::3]]
    lab.assert_clean()


def test_threads_cancelling_a_request_from_many_sides_end_it_once(lab, page_model):
    engine = open_threaded(lab, page_model)
    for _ in range(20):
        stream = engine.stream([97, 98], sampling(500))
        stream.read(30)
        cancellers = [threading.Thread(target=stream.cancel) for _ in range(6)]
        for thread in cancellers:
            thread.start()
        for thread in cancellers:
            thread.join()
        with pytest.raises(CancelledError):
            stream.result(30)
    assert engine.snapshot().cancelled == 20
    lab.assert_clean()


def test_threads_waiting_when_the_engine_closes_are_all_told(lab, page_model):
    engine = open_threaded(lab, page_model, num_pages=100_000, context_tokens=100_000)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(engine.generate, [97, i + 1], sampling(50_000)) for i in range(8)]
        while engine.snapshot().live < 8:
            pass
        engine.close()
        for future in waiting:
            assert isinstance(future.exception(30), EngineClosedError)
