"""Token masks against the pure-Python matcher: two engines, one meaning."""

import json
import threading
from random import Random

import pytest

pytest.importorskip("torch")
pytest.importorskip("xgrammar")

import torch
from pydantic import BaseModel

from sglang_dsl.errors import ConstraintError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import compile_constraint
from sglang_dsl.runtime.sample import grammar
from sglang_dsl.runtime.sample.grammar import GrammarPool

pytestmark = pytest.mark.engine

WORDS = [
    '{"',
    '":',
    '": "',
    '", "',
    '"}',
    "true",
    " the",
    "ab",
    "bug",
    '\\"',
    "\\u00",
    "é",
    "日本",
    "  ",
    "\n  ",
    '"a',
    'x"y',
    "]}",
    "12",
    '\\n"',
    "-1.5",
]
STOPS = {2, 5}
PADDED = 320


class ByteTokenizer:
    """Ids 0-7 are control tokens, then every byte, then some words and one long run."""

    stop_ids = frozenset(STOPS)
    control_ids = frozenset(range(8))
    table = (*[b""] * 8, *(bytes([b]) for b in range(256)), *(w.encode() for w in WORDS), b"z" * 24)
    vocab_size = len(table)

    def token_bytes(self, token_id):
        return self.table[token_id]


TABLE = ByteTokenizer.table
ANSWER = {
    "type": "object",
    "properties": {
        "category": {"enum": ["billing", "bug", "other"]},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
        "summary": {"type": "string", "maxLength": 80},
        "reply": {"type": "string", "maxLength": 160},
        "refund": {"type": "boolean"},
    },
    "required": ["category", "priority", "summary", "reply", "refund"],
    "additionalProperties": False,
}  # fmt: skip


class Step(BaseModel):
    name: str
    cost: float | None = None
    next: list["Step"] = []


SPECS = {
    "answer": ConstraintSpec.json_schema(ANSWER),
    "recursive model": ConstraintSpec.json_schema(Step.model_json_schema()),
    "short string": ConstraintSpec.json_schema({"type": "string", "minLength": 2, "maxLength": 5}),
    "long string": ConstraintSpec.json_schema({"type": "string", "maxLength": 30}),
    "two strings": ConstraintSpec.json_schema({"anyOf": [{"type": "string", "maxLength": 26}, {"type": "string", "minLength": 28}]}),
    "open object": ConstraintSpec.json_schema({"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": True}),
    "pattern": ConstraintSpec.json_schema({"type": "string", "pattern": '^["\\\\\\n]+[a-c]?$'}),
    "number": ConstraintSpec.json_schema({"type": "number", "minimum": -1.5, "exclusiveMaximum": 12.25}),
    "anything": ConstraintSpec.json_schema(True, max_whitespace=2),
    "regex": ConstraintSpec(kind="regex", text=r"(\w+ ){1,3}[^\d\s]*é?"),
    "choices": ConstraintSpec.choices(("New", "New York", "日本", "日")),
}  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    pool = GrammarPool(ByteTokenizer(), PADDED)
    yield pool
    pool.close()


def allowed(matcher):
    row = torch.zeros(PADDED // 32, dtype=torch.int32)
    matcher.fill_mask(row)
    return {i for i in range(PADDED) if int(row[i // 32]) >> (i % 32) & 1}


def token_for(piece):
    return TABLE.index(piece)


def feed(matcher, text):
    return all(matcher.accept(token_for(bytes([byte]))) for byte in text.encode())


@pytest.mark.parametrize("name", SPECS)
def test_masks_along_random_walks_equal_the_python_matcher(pool, name):
    spec, rng = SPECS[name], Random(name)
    compiled, pure = pool.compile(spec).result(), compile_constraint(spec)
    for _ in range(6):
        matcher, reference = compiled.matcher(), pure.matcher(TABLE.__getitem__)
        for _ in range(60):
            expected = {i for i, piece in enumerate(TABLE) if reference.allows(piece)}
            assert allowed(matcher) == expected | (STOPS if reference.may_end else set())
            assert (matcher.may_end, matcher.must_end) == (reference.may_end, reference.must_end)
            if not expected:
                break
            token = rng.choice(sorted(expected, key=lambda i: (len(TABLE[i]), i))[-40:])
            assert matcher.accept(token)
            assert reference.accept(token)


@pytest.mark.parametrize("name", SPECS)
def test_samples_and_single_character_mutations_are_judged_alike(pool, name):
    spec, rng = SPECS[name], Random(name)
    compiled, pure = pool.compile(spec).result(), compile_constraint(spec)
    for _ in range(30):
        text = pure.sample_text(rng, characters=60)
        at = rng.randrange(len(text) + 1)
        mutated = text[:at] + rng.choice(['"', "a", "1", "\\", " ", "}", "é", ""]) + text[at + 1 :]
        for candidate in (text, mutated):
            matcher = compiled.matcher()
            assert (feed(matcher, candidate) and matcher.may_end) == pure.matches(candidate), candidate


def test_control_tokens_are_never_allowed_and_stops_only_at_the_end(pool):
    matcher = pool.compile(SPECS["short string"]).result().matcher()
    assert feed(matcher, '"ab')
    assert not allowed(matcher) & set(range(8))
    assert not matcher.accept(2)
    assert feed(matcher, '"')
    assert allowed(matcher) == STOPS
    assert matcher.must_end


def test_tokens_beyond_the_vocabulary_are_never_allowed(pool):
    matcher = pool.compile(ConstraintSpec.json_schema({"type": "string"})).result().matcher()
    assert feed(matcher, '"')
    assert max(allowed(matcher)) < ByteTokenizer.vocab_size
    assert not matcher.accept(PADDED - 1)
    assert not matcher.accept(-1)


def test_stepping_after_the_end_changes_nothing(pool):
    matcher = pool.compile(SPECS["choices"]).result().matcher()
    assert feed(matcher, "New York")
    for token in (token_for(b"a"), 2, 5, PADDED - 1):
        assert not matcher.accept(token)
        assert matcher.must_end
        assert allowed(matcher) == STOPS


def test_forks_are_independent_and_rollback_restores(pool):
    matcher = pool.compile(SPECS["answer"]).result().matcher()
    assert feed(matcher, '{"category":"b')
    before, other = allowed(matcher), matcher.fork()
    assert feed(matcher, "illing")
    assert feed(other, "ug")
    assert allowed(other) == allowed(matcher)
    matcher.rollback(6)
    assert allowed(matcher) == before
    with pytest.raises(ValueError, match="fewer were accepted"):
        matcher.rollback(1000)


def test_rollback_past_a_length_bound_restores_the_mask(pool):
    matcher = pool.compile(SPECS["long string"]).result().matcher()
    assert feed(matcher, '"' + "a" * 20)
    before = allowed(matcher)
    assert feed(matcher, "b" * 10)
    assert allowed(matcher) == {token_for(b'"')}
    matcher.rollback(10)
    assert allowed(matcher) == before


def test_whitespace_runs_are_bounded_for_a_model_that_wants_only_space(pool):
    matcher = (
        pool.compile(ConstraintSpec.json_schema({"type": "array", "items": {"type": "integer"}})).result().matcher()
    )
    assert feed(matcher, "[" + " " * 8)
    assert not allowed(matcher) & {token_for(b" "), token_for(b"\n"), token_for(b"  ")}
    assert token_for(b"]") in allowed(matcher)


def test_long_string_bound_costs_no_compile_time_and_holds(pool):
    spec = ConstraintSpec.json_schema({"type": "string", "maxLength": 5000})
    compiled = pool.compile(spec).result(timeout=5)
    matcher = compiled.matcher()
    assert feed(matcher, '"' + "a" * 4990)
    assert token_for(b"z" * 24) not in allowed(matcher)
    assert token_for("日本".encode()) in allowed(matcher)
    assert feed(matcher, "b" * 10)
    assert allowed(matcher) == {token_for(b'"')}


def test_compile_equal_specs_once(pool):
    spec = ConstraintSpec.json_schema({"type": "array", "items": {"enum": [1, 2, 3]}})
    same = ConstraintSpec.json_schema({"type": "array", "items": {"enum": [1, 2, 3]}})
    assert pool.compile(spec) is pool.compile(same)
    assert pool.compile(spec).result() is pool.compile(same).result()


def test_malformed_specs_fail_alone_and_a_good_one_still_compiles(pool):
    bad = [
        ConstraintSpec(kind="json_schema", text='{"type":"object"'),
        ConstraintSpec(kind="json_schema", text='{"type":"date"}'),
        ConstraintSpec(kind="regex", text="(a"),
        ConstraintSpec(kind="choices", text="[]"),
        ConstraintSpec(kind="lark", text="start: A"),
        ConstraintSpec.json_schema({"type": "string", "minLength": 50000}),
        ConstraintSpec.json_schema(
            {"anyOf": [{"type": "string", "maxLength": 900}, {"type": "string", "minLength": 5}]}
        ),
    ]
    for spec in bad:
        with pytest.raises(ConstraintError) as error:
            pool.compile(spec).result()
        assert ".cc" not in str(error.value)
    assert feed(pool.compile(SPECS["choices"]).result().matcher(), "New")


def test_every_finished_walk_parses_and_fits_the_schema(pool):
    from jsonschema import Draft202012Validator

    compiled, rng, finished = pool.compile(SPECS["answer"]).result(), Random(4), 0
    validator = Draft202012Validator(ANSWER)
    for _ in range(20):
        matcher, data = compiled.matcher(), b""
        while not matcher.must_end and len(data) < 5000:
            token = rng.choice(sorted(allowed(matcher) - STOPS))
            assert matcher.accept(token)
            data += TABLE[token]
        if matcher.must_end:
            finished += 1
            validator.validate(json.loads(data))
    assert finished >= 15


@pytest.mark.parametrize("text", ["\\n", "\\u00e9", "\\ud83d\\ude42", "\\\\", "🙂", "\\u0041\\n"])
def test_bound_after_escapes_is_exact_at_every_byte(pool, text):
    spec = SPECS["long string"]
    matcher, reference = pool.compile(spec).result().matcher(), compile_constraint(spec).matcher(TABLE.__getitem__)
    for byte in ('"' + "a" * 25 + text * 5).encode():
        expected = {i for i, piece in enumerate(TABLE) if reference.allows(piece)}
        assert allowed(matcher) == expected
        token = token_for(bytes([byte]))
        assert matcher.accept(token) == reference.accept(token)


def test_compile_past_its_budget_fails_alone_and_is_tried_again(monkeypatch):
    pool, release, begun = GrammarPool(ByteTokenizer(), PADDED, budget_s=0.05), threading.Event(), threading.Event()
    compile_now = pool._compile

    def stuck(spec):
        if spec.kind == "regex" and not release.is_set():
            begun.set()
            release.wait(20)
        return compile_now(spec)

    monkeypatch.setattr(pool, "_compile", stuck)
    slow = ConstraintSpec(kind="regex", text="ab+")
    first = pool.compile(slow)
    assert begun.wait(10)
    assert feed(pool.compile(SPECS["choices"]).result(timeout=10).matcher(), "New")
    with pytest.raises(ConstraintError, match=r"not compiled after 0\.05 s") as error:
        first.result(timeout=10)
    assert error.value.retryable
    release.set()
    assert feed(pool.compile(slow).result(timeout=10).matcher(), "abb")
    pool.close()


def test_grammars_are_evicted_least_recently_used_first(monkeypatch):
    monkeypatch.setattr(grammar, "MAX_GRAMMARS", 2)
    pool = GrammarPool(ByteTokenizer(), PADDED)
    specs = [ConstraintSpec.choices((name,)) for name in ("a", "b", "c")]
    kept = [pool.compile(spec) for spec in specs[:2]]
    assert all(future.result(timeout=10) for future in kept)
    assert pool.compile(specs[0]) is kept[0]
    pool.compile(specs[2]).result(timeout=10)
    assert pool.compile(specs[0]) is kept[0]
    assert pool.compile(specs[1]) is not kept[1]
    pool.close()
