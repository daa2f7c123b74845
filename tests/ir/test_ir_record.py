"""What a run leaves behind: exact, complete, without secrets; and two of them side by side."""

import hashlib
import json
import math
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from graph_strategy import same
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dsl.errors import FormatError, JoinError, ToolError
from sglang_dsl.ir.execution import MISSING, ChoiceScore, Meta, Outcome, TokenScore, Usage
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Gen, Plain, Select, Text
from sglang_dsl.ir.outcome import PartialCharacters
from sglang_dsl.ir.record import (
    RunRecord,
    difference,
    dump_record,
    load_record,
    parse_record,
    plain_options,
    save_record,
    save_text,
)
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.ir.values import RecordedError, decode_value, encode_value

META = Meta(
    token_ids=(5, 6, 7),
    finish_reason="length",
    matched=7,
    prompt_tokens=40,
    cached_tokens=30,
    computed_tokens=10,
    generated_tokens=3,
    token_scores=(
        TokenScore(
            token_id=5, logprob=-0.1 - 0.2, token_bytes=b"\xf0\x9f", top=((5, -0.3, b"\xf0"), (9, -math.inf, b""))
        ),
    ),
    choices=(ChoiceScore(text="x", score=-1.5, token_ids=(1,), logprobs=(-1.5,), unconditional=(-math.inf,)),),
    reasoning="hm",
    seed=2**63,
    model="tiny",
    weight_version="3",
    started_s=0.25,
    first_token_s=0.5,
    finished_s=1.0,
)
GRAPH = Graph(
    [
        Text(id="1", pieces=(Plain("hello"),)),
        Gen(id="2", context="1", name="x"),
        Select(id="3", context="2", choices=("a", "b")),
    ],
    name="g",
)
RECORD = RunRecord(
    program="p",
    seed=11,
    graph=GRAPH,
    outcomes={
        "2": Outcome(value="abc", text="abc", meta=META),
        "j": Outcome(value=["a", MISSING, RecordedError("E305", "broke")], winners=(2, 0)),
    },
    errors={"3": RecordedError("E301", "cut off")},
    usage=Usage(calls=2, asked_tokens=80, computed_tokens=50, wall_s=1.5),
    error=RecordedError("E301", "cut off"),
    options={"priority": 0},
    versions={"sglang_dsl": "0.1.0"},
)


def test_parse_dump_gives_the_record_to_the_last_bit():
    read = parse_record(dump_record(RECORD))
    assert read.graph == GRAPH
    assert same(read.outcomes["2"], RECORD.outcomes["2"])
    assert read.outcomes["j"].winners == (2, 0)
    assert read.outcomes["j"].value[:2] == ["a", MISSING]
    assert (read.outcomes["j"].value[2].recorded_code, read.outcomes["j"].value[2].what) == ("E305", "broke")
    assert (read.seed, read.usage, read.options, read.versions) == (11, RECORD.usage, RECORD.options, RECORD.versions)
    assert str(read.error) == str(RECORD.error)
    assert dump_record(read) == dump_record(RECORD)


def test_save_load_leaves_one_whole_file(tmp_path):
    save_record(RECORD, tmp_path / "run.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]
    assert dump_record(load_record(tmp_path / "run.jsonl")) == dump_record(RECORD)


def test_save_record_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.jsonl"
    save_record(RECORD, path)
    with pytest.raises(FormatError, match="JSON values only"):
        save_record(replace(RECORD, outcomes={"2": Outcome(value=object())}), path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]
    assert load_record(path).seed == 11


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(["$missing", "$error", "$float"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_value_codec_round_trips_even_what_looks_like_its_own_marks(value):
    assert same(decode_value(encode_value(value)), value)


def test_value_codec_keeps_errors_of_either_kind_by_code_and_words():
    for error, code in ((ToolError("no"), "E305"), (JoinError("j", results=[1]), "E304"), (KeyError("k"), "KeyError")):
        read = decode_value(encode_value([error]))[0]
        assert (read.recorded_code, read.what) == (code, error.what if hasattr(error, "what") else str(error))


TEXT = dump_record(RECORD)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not the record of a run"),
        ("{}\n", "not the record of a run"),
        ("nonsense\n", "line 1 of the record is not JSON"),
        (TEXT.replace('"version":1', '"version":9', 1), "has version 9"),
        (TEXT.replace("hello", "hellO"), "changed after it was written"),
        ("".join(TEXT.splitlines(keepends=True)[:-1]), "cut off"),
        ("".join(TEXT.splitlines(keepends=True)[:1]), "cut off"),
        (
            "".join(TEXT.splitlines(keepends=True)[:2] + TEXT.splitlines(keepends=True)[3:]),
            "changed after it was written",
        ),
    ],
)
def test_parse_record_damaged_or_foreign_text_raises_format_error(text, words):
    with pytest.raises(FormatError) as caught:
        parse_record(text)
    assert words in caught.value.what


def test_plain_options_hold_no_secret():
    options = RunOptions(
        backend="remote:https://user:hunter2@host/",
        models={"judge": "remote:sk-secret"},
        namespace="api-key-123",
        priority=3,
    )
    kept = plain_options(options)
    assert (kept["backend"], kept["models"], kept["priority"]) == ("remote", {"judge": "remote"}, 3)
    assert not [word for word in ("hunter2", "sk-secret", "api-key-123") if word in repr(kept)]


def test_dump_record_redacts_every_line_and_still_loads():
    leaky = replace(RECORD, outcomes={"2": Outcome(value="key sk-1234", text="key sk-1234")})
    text = dump_record(leaky, redact=lambda line: line.replace("sk-1234", "[redacted]"))
    assert "sk-1234" not in text
    assert parse_record(text).outcomes["2"].text == "key [redacted]"


def test_dump_record_redacts_texts_as_they_are_not_as_json_escapes_them():
    leaky = replace(RECORD, outcomes={"2": Outcome(value=["line\nsk-1234"], text="line\nsk-1234")})
    text = dump_record(leaky, redact=lambda each: re.sub(r"\bsk-\d+", "[redacted]", each))
    assert "sk-1234" not in text
    assert parse_record(text).outcomes["2"].value == ["line\n[redacted]"]


def test_parse_dump_keeps_what_json_has_no_form_for():
    scores = (TokenScore(token_id=2**70, logprob=-0.0, top=((1, math.nan, b"\xff"), (2, -math.inf, b""))),)
    odd = Outcome(
        value=[math.nan, -math.inf, -0.0, 2**200, "\ud800", b"\xff", (1, 2)],
        text="\ud800",
        torn=PartialCharacters(b"\xa5", b"\xe6\x97"),
        meta=Meta(token_scores=scores, matched=0, started_s=0.1 + 0.2),
    )
    read = parse_record(dump_record(RunRecord(outcomes={"a": odd})))
    assert repr(read.outcomes["a"]) == repr(odd)


def resealed(*lines):
    """A record that somebody wrote, with a hash that fits."""
    body = "".join(lines)
    end = {
        "usage": {},
        "error": None,
        "lines": len(lines),
        "hash": f"sha256:{hashlib.sha256(body.encode()).hexdigest()}",
    }
    return body + json.dumps({"end": end}) + "\n"


HEAD, NODE = TEXT.splitlines(keepends=True)[:2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (resealed(HEAD, NODE.replace('"pieces"', '"peaces"')), "line 2 of the record: text node '1' has unknown fields: peaces"),
        (resealed(HEAD, NODE.replace('"id":"1"', '"id":1')), "line 2 of the record: text node 1, field id: 1 is not str"),
        (resealed(HEAD, NODE, '{"id":"2","outcome":{"text":5}}\n'), "line 3 of the record: the outcome of '2', field text: 5 is not str"),
        (resealed(HEAD, NODE, '{"id":"2","outcome":{"meta":{"finish_reason":"bored"}}}\n'), "line 3 of the record: the outcome of '2', field meta.finish_reason: 'bored' is not one of"),
        (resealed(HEAD, NODE, '{"id":"2"}\n'), "line 3 of the record: it is neither a node nor an outcome"),
        (resealed(HEAD, NODE, NODE), "node id '1' is taken"),
        (resealed(HEAD.replace('"seed":11', '"seed":"x"')), "line 1 of the record, field seed: 'x' is not int"),
        (resealed(HEAD.replace('"seed":11,', "")), "line 1 of the record: it lacks seed"),
        (resealed(HEAD.replace('"seed"', '"colour":1,"seed"')), "line 1 of the record has unknown fields: colour"),
        (resealed(HEAD.replace('"run"', '"calls"')), "this is not a record but a cassette"),
        (resealed(HEAD.replace('"run"', '["run"]')), "this is not a record but a ['run']"),
        (TEXT[:-20], "is not JSON, so the file is damaged or cut off"),
    ],
)  # fmt: skip
def test_parse_record_names_the_line_the_field_and_what_is_wrong(text, words):
    with pytest.raises(FormatError) as caught:
        parse_record(text)
    assert words in caught.value.what


def test_parse_record_reads_a_head_without_a_kind():
    assert parse_record(resealed(HEAD.replace('"kind":"run",', ""), NODE)).seed == 11


def output(text, *ids, **fields):
    return Outcome(value=text, text=text, meta=Meta(token_ids=ids, **fields))


def test_difference_of_a_run_with_itself_is_empty():
    found = difference(RECORD, parse_record(TEXT))
    assert not found
    assert found.first is None
    assert str(found) == "no node differs\ncost: the same"


def test_difference_names_the_first_node_and_token_that_differ_and_the_cost():
    a = replace(RECORD, errors={}, outcomes={"2": output("the cat sat", 1, 2, 3), "3": output("a", 9)})
    b = replace(
        a,
        outcomes={"2": output("the dog sat", 1, 8, 3), "3": output("b", 4)},
        usage=replace(RECORD.usage, computed_tokens=62),
        seed=12,
    )
    found = difference(a, b)
    assert (found.first.node_id, found.first.kind, found.first.token) == ("2", "output", 1)
    assert "'the cat sat' → 'the dog sat'" in str(found.first)
    assert [d.node_id for d in found.nodes] == ["2", "3"]
    assert found.settings == ("seed 11 → 12",)
    assert found.usage["computed_tokens"] == 12
    assert "cost: computed_tokens +12" in str(found)


def test_difference_sees_changed_prompts_options_errors_winners_and_missing_nodes():
    changed = Graph(
        [
            Text(id="1", pieces=(Plain("hello!"),)),
            Gen(id="2", context="1", name="x", sampling=SamplingSpec(max_tokens=5)),
            Gen(id="new", context="2"),
        ],
        name="g",
    )
    b = replace(RECORD, graph=changed, errors={}, outcomes={**RECORD.outcomes, "j": Outcome(value=[], winners=(1,))})
    found = {d.node_id: d for d in difference(RECORD, b).nodes}
    assert found["1"].kind == found["2"].kind == "node"
    assert "max_tokens" in found["2"].what
    assert found["new"].what == "is only in the second run"
    assert found["3"].kind == "only in a"
    assert found["j"].kind == "winners"
    assert difference(replace(RECORD, errors={}), RECORD).first.what == "no error → E301 'cut off'"


def test_difference_shorter_output_differs_where_it_ends():
    a = replace(RECORD, outcomes={"2": output("ab", 1, 2)})
    b = replace(RECORD, outcomes={"2": output("a", 1)})
    assert difference(a, b).first.token == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipe_that_is_saved_to_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    save_text(pipe, "whole")
    reader.join(10)
    assert heard == ["whole"]
    assert pipe.is_fifo()


def test_link_that_is_saved_to_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    save_text(link, "whole")
    assert link.is_symlink()
    assert target.read_text() == "whole"


def test_file_that_threads_save_at_once_is_always_whole(tmp_path: Path) -> None:
    file, texts = tmp_path / "file", [letter * 200_000 for letter in "abcd"]

    def saves(text: str) -> set[str]:
        found = set()
        for _ in range(20):
            save_text(file, text)
            found.add(file.read_text())
        return found

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(saves, texts)) <= set(texts)
