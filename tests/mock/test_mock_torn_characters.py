"""A character whose bytes two calls wrote is one character of the path, wherever the path is read (cases: 307)."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest

from sglang_dsl import gen, program, select, user
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.outcome import PathText, torn_of
from sglang_dsl.ir.record import dump_record, parse_record
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import cassette, mock, pieces

BEGINS, ENDS = pieces("一", b"\xe6\x97"), pieces(b"\xa5", "!")
SPLITS = [
    ((b"\xe6\x97", b"\xa5"), "日"),
    ((b"\xe6", b"\x97", b"\xa5"), "日"),
    ((b"\xf0", b"\x9f\x98", b"\x80 ok"), "😀 ok"),
    ((b"a\xf0\x9f", b"\x98", b"\x80\xe6\x97", b"\xa5"), "a😀日"),
    ((b"\xe6\x97", b"x\xa5"), "\ufffdx\ufffd"),
    ((b"\xe6\x97", b"\xe6\x97", b"\xa5"), "\ufffd日"),
    ((b"\xa5\xa5", b"\xa5"), "\ufffd\ufffd\ufffd"),
    ((b"\xc3", b"\xa9\xa9"), "é\ufffd"),
    ((b"\xf0\x9f", b"\x98\x80\x80"), "😀\ufffd"),
    ((b"\xe0", b"\x80\x80"), "\ufffd\ufffd\ufffd"),  # too long a form: never a character
]


@program
def chain(s, calls):
    s += "Say: "
    for name in calls:
        s += gen(name)
    s += " end"


def run(program_, script, *arguments):
    with mock(script) as backend:
        return program_.run(*arguments, options=RunOptions(backend=backend))


@pytest.mark.parametrize(("parts", "text"), SPLITS)
def test_text_messages_streams_and_records_decode_a_path_as_one_text(parts, text):
    script = {f"c{i}": pieces(part) for i, part in enumerate(parts)}
    with mock(script) as backend:
        result = chain.run(list(script), options=RunOptions(backend=backend))
        assert result.state.text == result.text == f"Say: {text} end"
        assert "".join(chain.stream(list(script), options=RunOptions(backend=backend))) == f"Say: {text} end"
        assert [result.state[name] for name in script] == [part.decode("utf-8", "replace") for part in parts]
        record = parse_record(dump_record(result.record))
        assert record.outcomes == result.record.outcomes
        replayed = execute(record.graph, backend, RunSpec(program="again"))
        assert replayed.seal().result().text == f"Say: {text} end"


@program
def conversation(s):
    s += user("Say it.")
    with s.role("assistant"), s.var_scope("both"):
        s += gen("a")
        first = s.text, s.messages()
        s += gen("b")
    return {"first": first, "text": s.text, "messages": s.messages(), "both": s["both"], "a": s["a"], "b": s["b"]}


def test_messages_and_stretches_join_and_single_values_keep_their_half():
    found = run(conversation, {"a": BEGINS, "b": ENDS}).value
    assert found["messages"][-1] == {"role": "assistant", "content": "一日!"}
    assert "一日!" in found["text"]
    assert "\ufffd" not in found["text"]
    assert found["first"][1][-1]["content"] == "一\ufffd"
    assert (found["both"], found["a"], found["b"]) == ("一日!", "一\ufffd", "\ufffd!")


@program
def branches(s):
    s += gen("a")
    whole, literal, chosen = s.fork(3)
    whole += gen("b")
    literal += "x"
    chosen += select("c", choices=["yes", "no"])
    return [whole.text, literal.text, chosen.text]


def test_each_branch_goes_on_from_the_half_for_itself():
    assert run(branches, {"a": BEGINS, "b": ENDS, "c": "no"}).value == ["一日!", "一\ufffdx", "一\ufffdno"]


@program
def joined(s):
    s += "Go: "
    parts = s.fork(2)
    parts[0] += gen("a")
    parts[1] += gen("b")
    parts.concat()
    s += gen("c")


def test_concatenated_branches_are_one_text():
    result = run(joined, {"a": BEGINS, "b": pieces(b"\xa5 ", b"\xf0\x9f"), "c": pieces(b"\x98\x80")})
    assert result.state.text == result.text == "Go: 一日 😀"


def test_the_rounds_of_a_loop_are_one_text():
    def once(s):
        s += gen("x")

    @program
    def looped(s):
        s += "Go: "
        s.loop(once, limit=3)
        s += "."

    script = {"x": [pieces(part) for part in (b"\xf0", b"\x9f\x98", b"\x80")]}
    with mock(script) as backend:
        graph = looped.trace()
        assert execute(graph, backend).seal().result().text == "Go: 😀."


@program
def two_models(s):
    s += gen("a")
    s += gen("b", model="other")
    return s.text


def test_what_another_model_wrote_stands_in_a_prompt_as_text_so_it_is_not_completed():
    with mock({"a": BEGINS}) as one, mock({"b": ENDS}) as other:
        options = RunOptions(backend=one, models={"other": other})
        assert two_models.run(options=options).value == "一\ufffd\ufffd!"


def test_the_prompt_says_what_the_text_says():
    with mock({"a": BEGINS, "b": ENDS, "c": "z"}) as backend:
        result = chain.run(["a", "b", "c"], options=RunOptions(backend=backend))
        assert backend.calls()[-1].prompt == "Say: 一日!"
        assert result.text == "Say: 一日!z end"


def test_a_cassette_plays_halves_again(tmp_path):
    path = tmp_path / "halves.jsonl"
    texts = []
    for mode in ("record", "replay"):
        backend = mock({"a": BEGINS, "b": ENDS, "c": "z"}) if mode == "record" else None
        with cassette(path, mode=mode, **({"backend": backend} if backend else {})) as tape:
            texts.append(chain.run(["a", "b", "c"], options=RunOptions(backend=tape)).state.text)
    assert texts == ["Say: 一日!z end"] * 2


def test_pictures_show_the_character_in_the_prompt():
    with mock({"a": BEGINS, "b": ENDS}) as backend:
        result = chain.run(["a", "b"], options=RunOptions(backend=backend))
        page = str(result.draw("html"))
    assert "日" in json.dumps(page, ensure_ascii=False) or "\\u65e5" in page


def test_a_stream_holds_half_a_character_until_its_other_half_comes():
    go = threading.Event()

    @program
    def paused(s):
        s += gen("a")
        s["a"]
        go.wait(20)
        s += gen("b")

    seen = []
    with mock({"a": BEGINS, "b": ENDS}) as backend:
        for chunk in paused.stream(options=RunOptions(backend=backend)):
            seen.append(str(chunk))
            go.set()
    assert seen[0] == "一"
    assert "".join(seen) == "一日!"


def test_async_streams_and_streams_of_one_name():
    async def read(of=None):
        with mock({"a": BEGINS, "b": ENDS}) as backend:
            stream = chain.stream(["a", "b"], options=RunOptions(backend=backend))
            return "".join([chunk async for chunk in (stream if of is None else stream.of(of))])

    assert asyncio.run(read()) == "Say: 一日! end"
    assert asyncio.run(read("a")) == "一\ufffd"


def test_a_half_at_the_very_end_is_shown():
    @program
    def ends(s):
        s += gen("a")

    with mock({"a": BEGINS}) as backend:
        assert "".join(ends.stream(options=RunOptions(backend=backend))) == "一\ufffd"


def test_thoughts_stand_between_a_half_and_the_answer():
    @program
    def thinks(s):
        s += gen("a")
        s += gen("b", reasoning=True)
        return s.text

    assert run(thinks, {"a": BEGINS, "b": [pieces("hm</think>"), pieces(b"\xa5")]}).value == "一\ufffd\ufffd"


def test_reading_after_every_call_joins_all_the_same():
    @program
    def long(s, rounds):
        for _ in range(rounds):
            s += gen("a")
            s += gen("b")
            assert s.text.count("\ufffd") == 0
            s.messages()
        return s.text

    script = {"a": pieces(b"\xe6\x97"), "b": pieces(b"\xa5")}
    assert run(long, script, 50).value == "日" * 50


def test_texts_put_together_in_any_pieces_are_the_decoding_of_all_bytes():
    draw = random.Random(7)
    alphabet = [
        b"a",
        "é".encode(),
        "日".encode(),
        "😀".encode(),
        b"\xe6\x97",
        b"\xa5",
        b"\xf0\x9f",
        b"\xff",
        b"\xc0",
        b"\xed\xa0",
    ]
    for _ in range(3000):
        data = b"".join(draw.choices(alphabet, k=draw.randrange(8)))
        cuts = sorted(draw.choices(range(len(data) + 1), k=draw.randrange(5)))
        parts = [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        path = PathText()
        groups = draw.randrange(len(parts) + 1)
        inner = PathText()  # as a join of branches puts some of them together first
        for part in parts[:groups]:
            inner.add(part.decode("utf-8", "replace"), torn_of(part))
        path.add(inner.text, inner.torn)
        for part in parts[groups:]:
            path = PathText(path.text, path.half)
            path.add(part.decode("utf-8", "replace"), torn_of(part))
        assert path.text == data.decode("utf-8", "replace"), parts
