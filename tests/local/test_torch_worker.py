"""TorchWorker against the plain transformers forward, step plans written by hand."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import EngineClosedError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.schedule.step import (
    MirrorWrite,
    OpenSequence,
    PageCopy,
    Row,
    RowGroup,
    SamplePoint,
    ScorePoint,
    StepPlan,
)

pytestmark = pytest.mark.engine

GREEDY = SamplingSpec(temperature=0, max_tokens=64)
PROMPT = torch.randint(1, 96, (50,), generator=torch.Generator().manual_seed(5)).tolist()


def opened(seq_id: int, prompt: list[int], spec: SamplingSpec = GREEDY, **options: Any) -> OpenSequence:
    return OpenSequence(seq_id, prompt, spec, options.pop("constraint", None), options.pop("seed", 0), **options)


class Pages:
    """Hands out pages of a worker, scattered."""

    def __init__(self, worker: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        self._free = iter(torch.randperm(worker.info.num_pages, generator=generator).tolist())
        self.size: int = worker.info.page_size

    def for_tokens(self, tokens: int) -> list[int]:
        return [next(self._free) for _ in range(-(-tokens // self.size))]


def decode(
    worker: Any, seq_id: int, start: int, token: int, pages: list[int], count: int, generated: int = 1
) -> list[int]:
    """`count` more tokens of one sequence, alone in its steps."""
    tokens = []
    for i in range(count):
        row = Row(seq_id, [token], start + i, pages)
        result = worker.execute(StepPlan(i, [row], samples=[SamplePoint(0, 0, seq_id, generated + i)]))
        token = result.samples[0].token_id
        tokens.append(token)
    return tokens


def test_worker_chunked_prefill_and_decode_equal_plain_greedy(worker: Any, plain_model: Any, greedy_plain: Any) -> None:
    pages = Pages(worker).for_tokens(80)
    worker.execute(StepPlan(0, [Row(1, PROMPT[:19], 0, pages)], opens=[opened(1, PROMPT)]))
    worker.execute(StepPlan(1, [Row(1, PROMPT[19:33], 19, pages)]))
    result = worker.execute(StepPlan(2, [Row(1, PROMPT[33:], 33, pages)], samples=[SamplePoint(0, 16, 1, 0)]))
    first = result.samples[0].token_id
    assert [first, *decode(worker, 1, 50, first, pages, 12)] == greedy_plain(plain_model, PROMPT, 13)
    assert result.elapsed_s > 0


def test_worker_parent_and_children_in_one_step_equal_plain(worker: Any, plain_model: Any, greedy_plain: Any) -> None:
    """The parent ends inside a page: its tail is mirrored into each child's first own page."""
    size, parent = worker.info.page_size, PROMPT[:37]
    suffixes = [[7, 8, 9], [11], [3, 4, 5, 6, 2]]
    pages = Pages(worker)
    parent_pages = pages.for_tokens(37)
    full = 37 // size * size
    rows, mirrors, opens, samples = [Row(0, parent, 0, parent_pages)], [], [], []
    for i, suffix in enumerate(suffixes, start=1):
        own = pages.for_tokens(60 - full)
        mirrors += [MirrorWrite(0, p, own[0], p - full) for p in range(full, 37)]
        rows.append(Row(i, suffix, 37, parent_pages[: full // size] + own, full))
        opens.append(opened(i, parent + suffix))
        samples.append(SamplePoint(i, len(suffix) - 1, i, 0))
    levels = [[RowGroup(1, 4, 0, full)]]
    result = worker.execute(StepPlan(0, rows, levels, mirrors=mirrors, opens=opens, samples=samples))
    tokens = {s.seq_id: [s.token_id] for s in result.samples}
    for step in range(5):  # all children decode together below the shared level
        batch = [
            Row(i, [tokens[i][-1]], 37 + len(suffix) + step, rows[i].pages, full)
            for i, suffix in enumerate(suffixes, start=1)
        ]
        points = [SamplePoint(i - 1, 0, i, step + 1) for i in tokens]
        result = worker.execute(StepPlan(step + 1, batch, [[RowGroup(0, 3, 0, full)]], samples=points))
        for s in result.samples:
            tokens[s.seq_id].append(s.token_id)
    for i, suffix in enumerate(suffixes, start=1):
        assert tokens[i] == greedy_plain(plain_model, parent + suffix, 6)


def test_worker_page_copy_continues_a_cached_parent(worker: Any, plain_model: Any, greedy_plain: Any) -> None:
    size, parent = worker.info.page_size, PROMPT[:21]
    pages = Pages(worker)
    parent_pages = pages.for_tokens(21)
    worker.execute(StepPlan(0, [Row(0, parent, 0, parent_pages)]))
    full = 21 // size * size
    own = pages.for_tokens(40 - full)
    copies = [PageCopy(parent_pages[-1], own[0], 21 - full)] if full < 21 else []
    row = Row(1, [30, 31], 21, parent_pages[: full // size] + own)
    plan = StepPlan(1, [row], copies=copies, opens=[opened(1, [*parent, 30, 31])], samples=[SamplePoint(0, 1, 1, 0)])
    assert worker.execute(plan).samples[0].token_id == greedy_plain(plain_model, [*parent, 30, 31], 1)[0]
    assert worker._loaded().pool.counters().copied_tokens == 21 - full


def test_worker_children_without_suffix_sample_from_one_row(worker: Any) -> None:
    pages = Pages(worker).for_tokens(30)
    spec = SamplingSpec(temperature=1.0)
    opens = [opened(i, PROMPT[:30], spec, seed=i) for i in range(8)]
    plan = StepPlan(
        0, [Row(0, PROMPT[:30], 0, pages)], opens=opens, samples=[SamplePoint(0, 29, i, 0) for i in range(8)]
    )
    tokens = [s.token_id for s in worker.execute(plan).samples]
    assert len(set(tokens)) > 2
    again = StepPlan(
        1, [Row(0, PROMPT[29:30], 29, pages)], samples=[SamplePoint(0, 0, i, 0) for i in reversed(range(8))]
    )
    assert [s.token_id for s in worker.execute(again).samples] == tokens[::-1]


def test_worker_scores_equal_log_softmax_of_plain_logits(worker: Any, plain_model: Any) -> None:
    pages = Pages(worker).for_tokens(20)
    points = [ScorePoint(0, 4, (3, 9), 2, 70), ScorePoint(0, 19, (5,), 0, 71)]
    scores = worker.execute(StepPlan(0, [Row(0, PROMPT[:20], 0, pages)], scores=points)).scores
    with torch.inference_mode():
        plain = plain_model(input_ids=torch.tensor([PROMPT[:20]]), use_cache=False).logits[0].log_softmax(-1)
    assert [s.key for s in scores] == [70, 71]
    assert scores[0].logprobs == pytest.approx([float(plain[4, 3]), float(plain[4, 9])], abs=1e-4)
    assert [i for i, _ in scores[0].top] == plain[4].topk(2).indices.tolist()
    assert scores[1].logprobs == pytest.approx([float(plain[19, 5])], abs=1e-4)
    assert scores[1].top == ()


def test_worker_logprobs_are_raw_and_carry_bytes(worker: Any, plain_model: Any) -> None:
    pages = Pages(worker).for_tokens(20)
    spec = SamplingSpec(temperature=0, logprobs=2, logit_bias=((42, 100.0),))
    plan = StepPlan(
        0, [Row(0, PROMPT[:20], 0, pages)], opens=[opened(0, PROMPT[:20], spec)], samples=[SamplePoint(0, 19, 0, 0)]
    )
    sampled = worker.execute(plan).samples[0]
    with torch.inference_mode():
        plain = plain_model(input_ids=torch.tensor([PROMPT[:20]]), use_cache=False).logits[0, -1].log_softmax(-1)
    assert sampled.token_id == 42
    assert sampled.score.logprob == pytest.approx(float(plain[42]), abs=1e-4)
    assert sampled.score.token_bytes == b"*"
    assert [(i, b) for i, _, b in sampled.score.top] == [(i, bytes([i])) for i in plain.topk(2).indices.tolist()]


def constrained(text: str) -> ConstraintSpec:
    return ConstraintSpec(kind="regex", text=text)


def test_worker_constraint_masks_its_row_only_and_reports_the_end(
    worker: Any, plain_model: Any, greedy_plain: Any
) -> None:
    pages = Pages(worker)
    tables = [pages.for_tokens(30) for _ in range(2)]
    opens = [opened(0, PROMPT[:9], constraint=constrained("31,63")), opened(1, PROMPT[9:20])]
    rows = [Row(0, PROMPT[:9], 0, tables[0]), Row(1, PROMPT[9:20], 0, tables[1])]
    first = worker.execute(
        StepPlan(0, rows, opens=opens, samples=[SamplePoint(0, 8, 0, 0), SamplePoint(1, 10, 1, 0)])
    ).samples
    assert (first[0].token_id, first[0].ended) == (31, False)
    assert first[1].token_id == greedy_plain(plain_model, PROMPT[9:20], 1)[0]
    rows = [Row(0, [31], 9, tables[0])]
    second = worker.execute(StepPlan(1, rows, samples=[SamplePoint(0, 0, 0, 1)])).samples[0]
    assert (second.token_id, second.ended) == (63, True)


def test_worker_reopened_sequence_continues_its_matcher(worker: Any) -> None:
    pages = Pages(worker).for_tokens(30)
    reopened = opened(4, PROMPT[:9], constraint=constrained("31,63,12"), generated=(31, 63))
    ids = [*PROMPT[:9], 31, 63]
    plan = StepPlan(0, [Row(4, ids, 0, pages)], opens=[reopened], samples=[SamplePoint(0, 10, 4, 2)])
    sampled = worker.execute(plan).samples[0]
    assert (sampled.token_id, sampled.ended) == (12, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constraint": constrained("95")}, "every token is masked"),
        ({"constraint": constrained("96")}, "this matcher is broken"),
        ({"constraint": constrained("x")}, "not a list of ids"),
        ({"spec": SamplingSpec(logit_bias=((97, 1.0),))}, "outside the vocabulary of 97"),
        ({"constraint": constrained("5,6"), "generated": (7,)}, "its matcher does not"),
    ],
    ids=["all-masked", "matcher-fails", "no-compile", "bias-id", "bad-replay"],
)
def test_worker_fault_of_one_row_is_its_own(
    worker: Any, plain_model: Any, greedy_plain: Any, options: dict[str, Any], message: str
) -> None:
    pages = Pages(worker)
    spec = options.get("spec", GREEDY)
    rest = {key: value for key, value in options.items() if key != "spec"}
    opens = [opened(0, PROMPT[:9], spec, **rest), opened(1, PROMPT[:9])]
    rows = [Row(i, PROMPT[:9], 0, pages.for_tokens(10)) for i in range(2)]
    plan = StepPlan(0, rows, opens=opens, samples=[SamplePoint(0, 8, 0, 0), SamplePoint(1, 8, 1, 0)])
    bad, good = worker.execute(plan).samples
    assert bad.token_id == -1
    assert message in str(bad.error)
    assert good == (1, greedy_plain(plain_model, PROMPT[:9], 1)[0], False, None, None)


def test_worker_step_without_rows_only_closes(worker: Any) -> None:
    worker.execute(StepPlan(0, [], opens=[opened(3, PROMPT)]))
    result = worker.execute(StepPlan(1, [], closes=[3, 99]))
    assert (result.samples, result.scores) == ([], [])


def test_worker_info_counts_bytes_and_pages(worker: Any) -> None:
    info = worker.info
    assert info.kv_bytes_per_token == 3 * 2 * 2 * 8 * 4  # layers, key and value, heads, size, float32
    assert info.num_pages == (1 << 21) // (info.kv_bytes_per_token * info.page_size)
    assert (info.vocab_size, info.context_tokens, info.kv_layout) == (97, 512, "float32/slots-heads-size")


def test_worker_prepare_passes_compile_errors_on(worker: Any, compiler: Any) -> None:
    assert worker.prepare(constrained("1,2")).result() is None
    with pytest.raises(Exception, match="not a list"):
        worker.prepare(constrained("nope")).result()
    assert compiler.compiled == ["1,2", "nope"]


def test_worker_closed_refuses_steps_and_closes_twice(worker: Any, compiler: Any) -> None:
    worker.close()
    worker.close()
    assert compiler.closed
    with pytest.raises(EngineClosedError):
        worker.execute(StepPlan(0, []))


def test_worker_prepare_cancelled_by_close_ends_with_an_error(worker: Any, compiler: Any, monkeypatch: Any) -> None:
    """Whoever waits for a constraint must not wait for ever when the compiler's threads end first."""
    pending: Future[Any] = Future()
    monkeypatch.setattr(compiler, "compile", lambda spec: pending)
    done = worker.prepare(constrained("1"))
    pending.cancel()
    pending.set_running_or_notify_cancel()
    with pytest.raises(EngineClosedError, match="before the constraint was compiled"):
        done.result(timeout=1)
