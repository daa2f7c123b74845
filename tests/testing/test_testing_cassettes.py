from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, assistant, gen, program, select, system, user
from sglang_dsl.errors import (
    CassetteError,
    DeadlineError,
    EngineError,
    FormatError,
    InvalidValueError,
    JoinError,
    QueueFullError,
    SpecError,
)
from sglang_dsl.ir.outcome import PartialCharacters, TokenScore
from sglang_dsl.runtime.backends.cassette import Cassette, ModelFacts, RecordedCall
from sglang_dsl.runtime.schedule.request import GenerateResult, ScoreResult
from sglang_dsl.testing import Fault, cassette, fails, mock, pieces, with_faults

ANSWER = gen("answer", max_tokens=16, temperature=0)
MOOD = select("mood", ["good", "bad"])


@program
def ask(s: State, question: str) -> list[str]:
    s += system("You are terse.")
    branches = s.fork(2)
    for i, branch in enumerate(branches):
        branch += user(f"{question} ({i})")
        branch += assistant(ANSWER)
    s += MOOD
    return branches.join(ANSWER)


def run(backend: Any, question: str = "Why?") -> Any:
    return ask.run(question, options=RunOptions(backend=backend, seed=1))


def script(call: Any) -> Any:
    if call.choices:
        return {"good": -1.0, "bad": -2.0}
    return pieces("be", "cause ", call.prompt[-24:-22])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ask.jsonl"
    with cassette(file, backend=mock(script)) as backend:
        assert not isinstance(backend, type(None))
        run(backend)
    return file


def test_cassette_replays_values_texts_counts_and_splits_without_the_model(path: Path) -> None:
    original = run(mock(script))
    with cassette(path, mode="replay") as backend:
        again = run(backend)
    assert again.value == original.value
    assert again.text == original.text
    assert again.usage.computed_tokens == original.usage.computed_tokens
    recorded = [json.loads(line) for line in path.read_text().splitlines()[1:-1]]
    assert [len(take["deltas"]) for take in recorded if take["key"]["kind"] == "generate"] == [3, 3]


def test_cassette_in_auto_mode_records_once_and_replays_after(tmp_path: Path) -> None:
    file = tmp_path / "auto.jsonl"
    backend = mock(script)
    with cassette(file, backend=backend) as recording:
        run(recording)
    calls = backend.calls().count
    with cassette(file, backend=backend) as replaying:
        run(replaying)
    assert backend.calls().count == calls == 3


def test_cassette_of_a_changed_prompt_fails_and_shows_where_it_differs(path: Path) -> None:
    with pytest.raises(JoinError) as caught, cassette(path, mode="replay") as backend:
        assert run(backend, "Why not?").value
    error = caught.value.results[0]
    assert isinstance(error, CassetteError)
    assert "prompt differs at character" in str(error)
    assert "Why not?" in str(error)


def test_cassette_of_a_changed_parameter_names_the_parameter(path: Path) -> None:
    @program
    def warmer(s: State) -> str:
        s += system("You are terse.")
        s += user("Why? (0)")
        s += assistant(gen("answer", max_tokens=17, temperature=0))
        return s["answer"]

    with pytest.raises(CassetteError, match=r"the nearest one is 'answer'|The nearest one is 'answer'"):  # noqa: SIM117
        with cassette(path, mode="replay") as backend:
            warmer.run(options=RunOptions(backend=backend))


def test_cassette_with_calls_nobody_made_fails_at_the_end(path: Path) -> None:
    with pytest.raises(CassetteError, match="3 recorded calls were not made"), cassette(path, mode="replay"):
        pass


def test_cassette_keeps_errors_as_data(tmp_path: Path) -> None:
    file = tmp_path / "errors.jsonl"

    @program
    def p(s: State) -> str:
        s += "x "
        s += gen("a")
        return s["a"]

    with cassette(file, backend=mock({"a": fails("gone", after=1, reply=pieces("one", "two"))})) as recording:  # noqa: SIM117
        with pytest.raises(EngineError, match="gone"):
            p.run(options=RunOptions(backend=recording))
    with cassette(file, mode="replay") as replaying, pytest.raises(EngineError, match="gone") as caught:
        p.run(options=RunOptions(backend=replaying))
    assert caught.value.retryable


def test_cassette_holds_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "secret.jsonl"
    secret = "sk-abcdefghijklmnop1234"

    @program
    def p(s: State, key: str) -> str:
        s += f"my key is {key} and my pet is Rex "
        s += gen("a")
        return s["a"]

    with cassette(file, backend=mock({"a": f"you said {secret}"}), redact=["Rex"]) as recording:
        p.run(secret, options=RunOptions(backend=recording))
    stored = file.read_text()
    assert secret not in stored
    assert "Rex" not in stored
    with cassette(file, mode="replay", redact=["Rex"]) as replaying:
        assert p.run(secret, options=RunOptions(backend=replaying)).value == "you said [redacted]"


def test_cassette_race_has_the_recorded_winner(tmp_path: Path) -> None:
    file = tmp_path / "race.jsonl"
    replies = {"slow": " ".join("abcdefgh"), "fast": "a"}

    @program
    def race(s: State) -> list[str]:
        s += "go "
        branches = s.fork(2)
        for branch, name in zip(branches, ("slow", "fast"), strict=True):
            branch += name + ": "
            branch += gen("v")
        return branches.first("v")

    def reply(call: Any) -> str:
        return replies["slow" if "slow" in call.prompt else "fast"]

    with cassette(file, backend=mock(reply)) as recording:
        assert list(race.run(options=RunOptions(backend=recording)).value) == ["a"]
    with cassette(file, mode="replay") as replaying:
        assert list(race.run(options=RunOptions(backend=replaying)).value) == ["a"]


def test_cassette_that_is_damaged_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CassetteError, match="no cassette"):
        cassette(tmp_path / "none.jsonl", mode="replay")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"format": "sglang-dsl-cassette", "version": 99}')
    with pytest.raises(FormatError, match="version 99"):
        cassette(bad, mode="replay")
    bad.write_text("{")
    with pytest.raises(FormatError, match="damaged"):
        cassette(bad, mode="replay")
    with pytest.raises(SpecError, match="unknown"):
        cassette(bad, mode="rewind")  # type: ignore[arg-type]


def test_cassette_keeps_scores_and_torn_bytes_to_the_last_bit(tmp_path: Path) -> None:
    scores = (
        TokenScore(token_id=1, logprob=-0.0, token_bytes=b"\xe6", top=((2, -math.inf, b"\xff"), (3, math.nan, b""))),
    )
    generated = GenerateResult(request_id="", token_ids=(1,), text="\ud800\ufffd", finish_reason="eos", torn=PartialCharacters(b"", b"\xe6"), token_scores=scores, prompt_scores=(None, *scores), matched=2**70, started_s=0.1 + 0.2)  # fmt: skip
    scored = ScoreResult(request_id="", logprobs=((-0.1 - 0.2, -math.inf),))
    calls = [
        RecordedCall({"kind": "generate"}, 0, [("\ud800", 1)], generated),
        RecordedCall({"kind": "score"}, 1, [], scored),
    ]
    Cassette(ModelFacts(model="m"), calls).save(tmp_path / "c.jsonl", str)
    read = Cassette.load(tmp_path / "c.jsonl")
    assert repr(read) == repr(Cassette(ModelFacts(model="m"), calls))
    assert [file.name for file in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "line 3 of the cassette is not JSON"),
        (lambda lines: [lines[0], lines[1].replace("eos", "stop"), lines[2]], "changed after it was written"),
        (lambda lines: [lines[0].replace('"calls"', '"run"'), *lines[1:]], "not a cassette but a record"),
        (lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]], "version 2; this release reads"),
        (lambda lines: ['{"format": "sglang-dsl-cassette", "version": 1}\n'], "an earlier format (version 1)"),
        (lambda lines: resealed(lines[0], lines[1].replace('"end":0', '"end":"x"')), "line 2 of the cassette: a call, field end: 'x' is not int"),
        (lambda lines: resealed(lines[0].replace('"model"', '"modul"'), lines[1]), "line 1 of the cassette has unknown fields: modul"),
    ],
)  # fmt: skip
def test_cassette_file_that_is_not_whole_is_refused_with_the_line_and_what_to_do(
    tmp_path: Path, damage: Any, words: str
) -> None:
    file = tmp_path / "c.jsonl"
    call = RecordedCall(
        {"kind": "generate"}, 0, [], GenerateResult(request_id="", token_ids=(), text="", finish_reason="eos")
    )
    Cassette(ModelFacts(model="m"), [call]).save(file, str)
    file.write_text("".join(damage(file.read_text().splitlines(keepends=True))))
    with pytest.raises(FormatError) as caught:
        Cassette.load(file)
    assert words in caught.value.what
    assert caught.value.hint


def resealed(*lines: str) -> list[str]:
    """The lines of a file that somebody wrote with a hash that fits."""
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return [*lines, json.dumps({"end": {"lines": len(lines), "hash": f"sha256:{digest}"}}) + "\n"]


# faults


def test_fault_cut_on_a_replayed_cassette_cuts_branch_one_only(path: Path) -> None:
    with cassette(path, mode="replay") as replaying:
        node = json.loads(path.read_text().splitlines()[2])["key"]["node"]
        result = run(with_faults(replaying, {node: Fault("cut", after=2)}))
        values = list(result.value)
    original = list(run(mock(script)).value)
    assert values[0] == original[0]
    assert original[1].startswith(values[1])
    assert len(values[1]) < len(original[1])


@program
def once(s: State, retries: int = 0) -> Any:
    s += "x "
    s += gen("a", type=int, retries=retries, timeout_s=5.0)
    return s["a"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("refuse"), QueueFullError),
        (Fault("fail"), EngineError),
        (Fault("stall"), DeadlineError),
        (Fault("malformed", text="{"), InvalidValueError),
    ],
)
def test_fault_reaches_the_program_as_its_error(fault: Fault, error: type[Exception]) -> None:
    with pytest.raises(error):
        once.run(options=RunOptions(backend=with_faults(mock({"a": "4"}), {"a": fault})))


def test_fault_that_strikes_once_is_survived_by_a_retry() -> None:
    backend = with_faults(mock({"a": "4"}), {"a": Fault("malformed", text="{", times=1)})
    assert once.run(1, options=RunOptions(backend=backend)).value == 4
