"""Constraints through the whole engine on a real forward: no matcher's state reaches another request."""

from __future__ import annotations

import json

import pytest

from sglang_dsl.errors import ConstraintError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PROMPTS = [list(text.encode()) for text in ("The answer is ", "Another text, and ", "A number: ")]
INTEGER = ConstraintSpec.json_schema({"type": "integer", "minimum": 0, "maximum": 9999}, max_whitespace=0)
NAMES = ConstraintSpec.json_schema(
    {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"], "additionalProperties": False},
    max_whitespace=0,
)
GREEDY = SamplingSpec(temperature=0, max_tokens=24, logprobs=2)


def together(tiny, constraints):
    """One batch, a prompt and a constraint per row."""
    from test_proof_token_canary import submit

    from sglang_dsl.runtime.schedule.request import GenerateRequest

    space = tiny.engine.info.namespace
    requests = [
        GenerateRequest(request_id=f"r{i}", prompt_ids=p, sampling=GREEDY, constraint=c, namespace=space)
        for i, (p, c) in enumerate(zip(PROMPTS, constraints, strict=True))
    ]
    sinks = submit(tiny, requests)
    while not all(sink.ends for sink in sinks):
        tiny.engine.turn()
    return [sink.ends[0] for sink in sinks]


def test_bug_57_mixed_batch_leaves_the_unconstrained_row_and_later_requests_as_they_are_alone(open_tiny):
    tiny = open_tiny(batch_invariant=True)
    alone = [
        tiny.engine.generate(p, GREEDY, constraint=c) for p, c in zip(PROMPTS, (INTEGER, None, NAMES), strict=True)
    ]
    for _ in range(2):
        tiny.engine.flush()
        mixed = together(tiny, (INTEGER, None, NAMES))
        assert [r.token_scores for r in mixed] == [r.token_scores for r in alone]
        assert tiny.engine.generate(PROMPTS[1], GREEDY).token_scores == alone[1].token_scores
    assert isinstance(json.loads(mixed[0].text), int)
    assert isinstance(json.loads(mixed[2].text)["n"], bool)


def test_bug_59_60_constraint_used_again_starts_afresh_also_after_it_was_cut_or_cancelled(open_tiny):
    tiny = open_tiny(batch_invariant=True)
    fresh = open_tiny(batch_invariant=True).engine.generate(PROMPTS[0], GREEDY, constraint=NAMES)
    cut = tiny.engine.generate(PROMPTS[0], SamplingSpec(temperature=0, max_tokens=3), constraint=NAMES)
    assert cut.finish_reason == "length"
    for _ in range(3):
        again = tiny.engine.generate(PROMPTS[0], GREEDY, constraint=NAMES)
        assert (again.text, again.token_scores) == (fresh.text, fresh.token_scores)
        assert again.finish_reason == "constraint"


def test_constraint_survives_retraction_in_the_middle_of_a_value(open_tiny):
    """The matcher is opened again with what it had accepted, and accepts nothing twice."""
    calm = together(open_tiny(batch_invariant=True), (INTEGER, NAMES, NAMES))
    rough = open_tiny(batch_invariant=True, retract_every_steps=2)
    again = together(rough, (INTEGER, NAMES, NAMES))
    assert [r.token_scores for r in again] == [r.token_scores for r in calm]
    assert rough.engine.snapshot().scheduler.retracted > 2


def test_bug_58_malformed_constraint_fails_alone_and_the_good_one_still_works(open_tiny):
    tiny = open_tiny(batch_invariant=True)
    good = ConstraintSpec(kind="regex", text="p|q")
    first = tiny.engine.generate(PROMPTS[0], GREEDY, constraint=good).text
    bad = [ConstraintSpec(kind="regex", text=text) for text in ("(", "[z-a]", "a{3,1}", r"(?=x)y")]
    bad += [ConstraintSpec.json_schema({"type": "date"}), ConstraintSpec(kind="json_schema", text='{"type":"object"')]
    for spec in bad:
        with pytest.raises(ConstraintError):
            tiny.engine.generate(PROMPTS[0], GREEDY, constraint=spec)
    assert tiny.engine.generate(PROMPTS[0], GREEDY, constraint=good).text == first
    assert first in ("p", "q")
    tiny.engine.check()
