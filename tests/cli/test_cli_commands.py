"""The command as a user types it: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from sglang_dsl.cli import main
from sglang_dsl.ir.execution import close_all

PROGRAMS = """
from sglang_dsl import assistant, gen, program, select, user

@program
def ask(s, topic: str, times: int = 1):
    for _ in range(times):
        s += user(f"About {topic}?")
        s += assistant(gen("line", max_tokens=8))
    return s["line"]

@program
def typo(s):
    s += "One metal: "
    s += gen("answer", max_tokens=4)
    return s["anwser"]

@program
def nothing(s, items: list[str]):
    s += "Each: "
    calls = s.fork(len(items))
    calls += gen("x", max_tokens=4)
    return calls.join("x")

@program
def slow(s):
    s += "One metal: "
    s += gen("first", max_tokens=2)
    s["first"]
    print("first is there", flush=True)
    import time
    time.sleep(60)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS, encoding="utf-8")
    return path


class Cli(Protocol):
    def __call__(self, *arguments: str) -> Done: ...


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The command in this process; what it changes about the process is put back."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda *arguments: Done(main(arguments), *capsys.readouterr())
    close_all()


def process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sglang_dsl.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
        timeout=100,
    )


def test_run_of_a_program_prints_text_value_and_tokens(cli: Cli, file: Path) -> None:
    done = cli("run", f"{file}:ask", "--arg", "topic=tents", "--backend", "mock")
    assert done.returncode == 0, done.stderr
    assert "About tents?" in done.stdout
    assert "prompt tokens asked" in done.stderr


def test_run_with_stream_prints_the_text_once(cli: Cli, file: Path) -> None:
    done = cli("run", f"{file}:ask", "--arg", "topic=tents", "--backend", "mock", "--stream")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_run_of_a_script_passes_its_own_arguments(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nprint(sys.argv[1:])\nif __name__ == '__main__':\n    sys.exit(3)\n", encoding="utf-8"
    )
    done = cli("run", str(script), "--tickets", "5")
    assert done.stdout.strip() == "['--tickets', '5']"
    assert done.returncode == 3


def test_trace_prints_the_graph_without_a_model(cli: Cli, file: Path) -> None:
    done = cli("trace", f"{file}:ask", "--arg", "topic=tents", "--arg", "times=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gen ") == 2


@pytest.mark.parametrize("form", ["mermaid", "html", "terminal", "dot", "svg", "json"])
def test_trace_writes_every_picture_to_a_file(cli: Cli, file: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "deep" / f"graph.{form}"
    done = cli("trace", f"{file}:ask", "--arg", "topic=tents", "--format", form, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 100
    if form == "json":
        json.loads(out.read_text(encoding="utf-8"))


def test_bench_prints_a_row_per_run(cli: Cli, file: Path) -> None:
    done = cli("bench", f"{file}:ask", "--arg", "topic=x", "--backend", "mock", "--repeat", "2")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_models_list_names_the_licence_and_how_to_fetch(tmp_path: Path) -> None:
    done = process("models", "list", SGLANG_DSL_CACHE=str(tmp_path))
    assert done.returncode == 0
    assert "smollm2" in done.stdout
    assert "Apache-2.0" in done.stdout
    assert "sglang-dsl models pull smollm2" in done.stdout


@pytest.mark.engine
def test_doctor_says_what_is_there_and_what_a_gpu_would_need(cli: Cli) -> None:
    done = cli("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("python", "threads", "allocator", "models", "gpu"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nowhere.py"], 2, ["there is no file 'nowhere.py'"]),
        (["run", "{file}:asl", "--backend", "mock"], 2, ["has no program 'asl'", "ask, typo"]),
        (["run", "{file}:ask", "--backend", "mock"], 2, ["needs topic", "--arg topic=..."]),
        (["run", "{file}:ask", "--arg", "topik=x", "--backend", "mock"], 2, ["takes: topic, times"]),
        (["run", "{file}:ask", "--arg", "topic=x", "--arg", "times=two", "--backend", "mock"], 2, ["times='two'"]),
        (["run", "{file}:ask", "--arg", "topic=x", "--backend", "mok"], 2, ["no backend is called 'mok'", "mock"]),
        (["run", "{file}:typo", "--backend", "mock"], 2, ["'anwser'", "answer", "programs.py"]),
        (["run", "{file}:nothing", "--arg", "items=[]", "--backend", "mock"], 2, ["fork(0)", "programs.py"]),
        (["models", "pull", "smolm2"], 2, ["smolm2", "smollm2"]),
    ],
)
def test_first_mistakes_get_the_message_one_would_want(
    cli: Cli, file: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    done = cli(*(a.replace("{file}", str(file)) for a in arguments))
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.engine
def test_run_without_a_pulled_model_names_the_command(file: Path, tmp_path: Path) -> None:
    done = process("run", f"{file}:ask", "--arg", "topic=x", SGLANG_DSL_CACHE=str(tmp_path / "empty"))
    assert done.returncode == 2
    assert "sglang-dsl models pull smollm2" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_without_the_engine_extra_names_it(file: Path, tmp_path: Path) -> None:
    hider = tmp_path / "sitecustomize.py"
    hider.write_text(
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        "hidden = ('torch', 'transformers', 'xgrammar', 'gguf', 'tokenizers')\n"
        "PathFinder.find_spec = lambda name, *rest: None if name.split('.')[0] in hidden else found(name, *rest)\n",
        encoding="utf-8",
    )
    done = process("run", f"{file}:ask", "--arg", "topic=x", PYTHONPATH=f"{tmp_path}:.")
    assert done.returncode == 2
    assert "pip install 'sglang-dsl[engine]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_prints_what_had_finished(file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sglang_dsl.cli", "run", f"{file}:slow", "--backend", "mock"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "first is there"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted; 1 values had finished" in err
    assert "first = " in out
    assert "Traceback" not in err
    assert time.monotonic() - began < 5


def test_explain_counts_what_is_shared_before_a_run(cli: Cli, file: Path) -> None:
    done = cli("explain", f"{file}:ask", "--arg", "topic=tents", "--arg", "times=3", "--backend", "mock")
    assert done.returncode == 0, done.stderr
    assert "prompt tokens" in done.stdout
    assert "critical path" in done.stdout


def recorded(cli: Cli, file: Path, record: Path, topic: str = "tents") -> None:
    done = cli(
        "run", f"{file}:ask", "--arg", f"topic={topic}", "--backend", "mock", "--seed", "1", "--save", str(record)
    )
    assert done.returncode == 0, done.stderr


def test_replay_of_a_saved_run_gives_its_value_without_a_model(cli: Cli, file: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    run = cli("run", f"{file}:ask", "--arg", "topic=tents", "--backend", "mock", "--seed", "1", "--save", str(record))
    replay = cli("replay", str(record), f"{file}:ask", "--arg", "topic=tents")
    assert replay.returncode == 0, replay.stderr
    assert replay.stdout.strip() == run.stdout.replace(str(record), "").strip()


def test_replay_of_another_prompt_says_where_it_differs(cli: Cli, file: Path, tmp_path: Path) -> None:
    recorded(cli, file, tmp_path / "run.jsonl")
    done = cli("replay", str(tmp_path / "run.jsonl"), f"{file}:ask", "--arg", "topic=tins")
    assert done.returncode == 2
    assert "tins" in done.stderr
    assert "Traceback" not in done.stderr


def test_diff_of_two_runs_names_the_first_difference(cli: Cli, file: Path, tmp_path: Path) -> None:
    recorded(cli, file, tmp_path / "a.jsonl")
    recorded(cli, file, tmp_path / "b.jsonl", topic="boats")
    same = cli("diff", str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl"))
    other = cli("diff", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    assert (same.returncode, other.returncode) == (0, 1)
    assert "no node differs" in same.stdout
    assert "first difference at" in other.stdout


def test_trace2test_writes_a_test_that_passes(cli: Cli, file: Path, tmp_path: Path) -> None:
    recorded(cli, file, tmp_path / "run.jsonl")
    made = cli("trace2test", str(tmp_path / "run.jsonl"), "line", f"{file}:ask", "--arg", "topic=tents")
    assert made.returncode == 0, made.stderr
    (tmp_path / "test_recorded.py").write_text(made.stdout, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_recorded.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_trace2test_of_an_unknown_node_lists_those_there_are(cli: Cli, file: Path, tmp_path: Path) -> None:
    recorded(cli, file, tmp_path / "run.jsonl")
    done = cli("trace2test", str(tmp_path / "run.jsonl"), "lime", f"{file}:ask", "--arg", "topic=tents")
    assert done.returncode == 2
    assert "line" in done.stderr


def test_run_with_top_shows_the_engine_and_still_prints_the_value(cli: Cli, file: Path) -> None:
    done = cli("run", f"{file}:ask", "--arg", "topic=tents", "--backend", "mock", "--top")
    assert done.returncode == 0, done.stderr
    assert "=>" in done.stdout


def test_run_with_a_picture_draws_what_happened(cli: Cli, file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "deep" / "run.html"
    done = cli("run", f"{file}:ask", "--arg", "topic=tents", "--backend", "mock", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "tents" in picture.read_text(encoding="utf-8")


def test_run_of_a_file_without_a_main_part_names_its_programs(cli: Cli, file: Path) -> None:
    done = cli("run", str(file), "--backend", "mock")
    assert done.returncode == 0
    assert f"sglang-dsl run {file}:PROGRAM (ask, typo, nothing, slow)" in done.stderr


def test_trace_without_an_argument_offers_to_leave_it_unknown(cli: Cli, file: Path) -> None:
    done = cli("trace", f"{file}:ask")
    assert done.returncode == 2
    assert "--symbolic topic" in done.stderr
    assert cli("trace", f"{file}:ask", "--symbolic", "topic").returncode == 0
