"""Every option is honoured or refused, in every mode; files are written whatever becomes of the run (cases: 401)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from sglang_dsl.cli import main
from sglang_dsl.ir.execution import close_all
from sglang_dsl.ir.record import load_record

PROGRAMS = """
import datetime, enum, sys, time
from typing import Literal
from sglang_dsl import gen, program, tool, user

class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"

@tool
def broken(x: str) -> str:
    raise ValueError("no such order")

@program
def ask(s, topic: str = "Grüße →"):
    s += user(f"About {topic}?") + gen("line", max_tokens=8)
    return topic

@program
def typed(s, day: datetime.date, mood: Mood = Mood.GOOD, maybe: str | None = None, n: int | str = 1,
          some: Literal["1", "2"] = "1", many: list[int] = [], flag: bool = False, **more):
    s += "x" + gen("line", max_tokens=2)
    return [day.isoformat(), mood.value, maybe, n, some, many, flag, more]

@program
def odd(s, what: ask.__class__.__mro__[0].run.__class__ = None):
    s += "x"

@program
def by_body(s):
    s += "Hi " + gen("first", max_tokens=2)
    s["first"]
    deeper()

def deeper():
    raise LookupError("of the user's own")

@program
def by_tool(s):
    s += "Hi " + gen("first", max_tokens=2)
    return s.call(broken, x="1").value

@program
def by_exit(s):
    s += "Hi " + gen("first", max_tokens=2)
    s["first"]
    sys.exit(7)

@program
def slow(s):
    s += "One metal: " + gen("first", max_tokens=2)
    s["first"]
    print("first is there", flush=True)
    time.sleep(60)

@program
def lines(s):
    for i in range(400):
        s += f"line {i} " * 20 + gen("x", max_tokens=4) + "\\n"
    return s.text
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Cli(Protocol):
    def __call__(self, *arguments: str) -> Done: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS, encoding="utf-8")
    return path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The command in this process; what it changes about the process is put back."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda *arguments: Done(main(arguments), *capsys.readouterr())
    close_all()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sglang_dsl.cli", *arguments]


# --- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("ask", 0, "=> tents"), ("by_body", 1, "LookupError"), ("by_tool", 2, "E305"), ("by_exit", 7, "")],
)
def test_files_are_written_however_the_run_ends(
    cli: Cli, file: Path, tmp_path: Path, name: str, code: int, words: str, stream: list[str]
) -> None:
    record, picture = tmp_path / "run.jsonl", tmp_path / "run.svg"
    topic = ["--arg", "topic=tents"] if name == "ask" else []
    done = cli(
        "run", f"{file}:{name}", *topic, "--backend", "mock", "--save", str(record), "--picture", str(picture), *stream
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
    assert load_record(record).program == name
    assert ElementTree.fromstring(picture.read_text(encoding="utf-8")).tag.endswith("svg")
    assert [p for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["plain", "stream"])
def test_files_are_written_after_an_interrupt(file: Path, tmp_path: Path, stream: list[str]) -> None:
    record, picture = tmp_path / "run.jsonl", tmp_path / "run.html"
    options = ["--backend", "mock", "--save", str(record), "--picture", str(picture), *stream]
    process = subprocess.Popen(
        command("run", f"{file}:slow", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while "first is there" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert load_record(record).outcomes
    assert "<!doctype html>" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("suffix", "begins"),
    [("svg", "<svg"), ("html", "<!doctype"), ("mmd", "flowchart"), ("dot", "digraph"), ("txt", "ask"), ("json", "{")],
)
def test_suffix_chooses_the_format(cli: Cli, file: Path, tmp_path: Path, suffix: str, begins: str) -> None:
    picture, graph = tmp_path / f"run.{suffix}", tmp_path / f"graph.{suffix}"
    assert cli("run", f"{file}:ask", "--backend", "mock", "--picture", str(picture)).returncode == 0
    assert cli("trace", f"{file}:ask", "--out", str(graph)).returncode == 0
    assert picture.read_text(encoding="utf-8").startswith(begins)
    assert graph.read_text(encoding="utf-8").startswith("graph" if suffix == "txt" else begins)
    if suffix == "json":
        assert "traceEvents" in json.loads(picture.read_text(encoding="utf-8"))


def refusals(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    blocked = tmp_path / "blocked"
    blocked.write_text("", encoding="utf-8")
    return {
        "folder": (["--save", str(tmp_path)], "it is a folder"),
        "parent is a file": (["--save", str(blocked / "run.jsonl")], "cannot be written"),
        "no such place": (["--save", "/proc/none/run.jsonl"], "cannot be written"),
        "picture in a folder": (["--picture", str(tmp_path) + "/x.png/"], ".png"),
        "unknown suffix": (["--picture", "run.png"], "the suffix '.png' is unknown"),
        "no suffix": (["--picture", "run"], "no suffix"),
        "record named as a picture": (["--save", "run.html"], "JSON lines"),
        "same file": (["--save", "run.json", "--picture", "run.json"], "same file"),
        "argument twice": (["--arg", "topic=a", "--arg", "topic=b"], "given twice"),
        "stream and top": (["--stream", "--top"], "both write to the terminal"),
        "unknown option": (["--strem"], "did you mean --stream?"),
        "further word": (["more"], "unknown argument: more"),
        "seed": (["--seed", "x"], "seed"),
        "model and backend": (["--model", "smollm2"], "exclude each other"),
    }


@pytest.mark.parametrize("which", refusals(Path("/tmp")))
def test_wrong_use_is_refused_before_anything_runs(
    cli: Cli, file: Path, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, words = refusals(tmp_path)[which]
    done = cli("run", f"{file}:ask", "--backend", "mock", *options)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "option", [["--save", "a"], ["--picture", "b.html"], ["--stream"], ["--top"], ["--arg", "a=1"]]
)
def test_options_of_a_program_are_refused_for_a_script(cli: Cli, tmp_path: Path, option: list[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')", encoding="utf-8")
    done = cli("run", str(script), *option)
    assert done.returncode == 2
    assert f"{option[0]} needs a program" in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "svg", "--out", "x.html"], "do not fit"),
        (["--out", "x.pdf"], "'.pdf' is unknown"),
        (["--format", "png"], "'png' is unknown"),
        (["--symbolic", "topik"], "takes: topic"),
        (["--arg", "topic=a", "--symbolic", "topic"], "choose one"),
    ],
)
def test_trace_refuses_what_does_not_fit(cli: Cli, file: Path, options: list[str], words: str) -> None:
    done = cli("trace", f"{file}:ask", *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_full_disk_is_said_and_leaves_the_device_alone(file: Path) -> None:
    done = subprocess.run(
        command("run", f"{file}:ask", "--backend", "mock", "--save", "/dev/full"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("/dev/full").is_file()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("trace", f"{file}:ask"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("which", ["missing", "folder", "not text", "not a record"])
def test_record_that_cannot_be_read_is_said(cli: Cli, file: Path, tmp_path: Path, which: str) -> None:
    path = tmp_path / "a.jsonl"
    if which == "folder":
        path.mkdir()
    elif which != "missing":
        path.write_bytes(b"\xff\xfe\x00" if which == "not text" else b"{}\n")
    for arguments in (["diff", path, path], ["replay", path, f"{file}:ask"], ["trace2test", path, "x", f"{file}:ask"]):
        done = cli(*map(str, arguments))
        assert done.returncode == 2
        assert done.stderr.startswith("[E210]")


# --- the user's code ----------------------------------------------------------------------------------------------------


def test_exception_of_the_body_shows_the_users_frames_only(cli: Cli, file: Path) -> None:
    done = cli("run", f"{file}:by_body", "--backend", "mock")
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert [f.rpartition(" ")[2] for f in frames] == ["by_body", "deeper"]
    assert done.stderr.rstrip().endswith("LookupError: of the user's own")


@pytest.mark.parametrize(
    ("source", "last"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("raise OSError(28, 'mine')", "OSError: [Errno 28] mine"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("\n\ndef f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero"),
    ],
)
def test_exception_of_a_script_shows_its_own_traceback(cli: Cli, tmp_path: Path, source: str, last: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(source, encoding="utf-8")
    for target in (str(script), f"{script}:p"):
        done = cli("run", target, "--backend", "mock")
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith(last)
        assert "cli.py" not in done.stderr
        assert "runpy" not in done.stderr


def test_script_imports_what_stands_beside_it_and_gets_what_follows_two_dashes(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("word = 'found'", encoding="utf-8")
    (tmp_path / "script.py").write_text("import sys, beside_it\nprint(beside_it.word, sys.argv[1:])", encoding="utf-8")
    done = cli("run", str(tmp_path / "script.py"), "--", "--save", "x")
    assert done.stdout.strip() == "found ['--save', 'x']"


def test_program_that_is_not_there_names_the_nearest(cli: Cli, file: Path) -> None:
    assert f"{file}:ask" in cli("run", f"{file}:asc").stderr
    assert "put @program on the function" in cli("run", f"{file}:deeper").stderr
    assert "names no program" in cli("run", f"{file}:").stderr


def test_arguments_are_read_as_their_annotations_say(cli: Cli, file: Path) -> None:
    given = ["day=2026-11-30", "mood=bad", "maybe=3", "n=3", "some=2", "many=[1, 2]", "flag=yes", "else=[]"]
    done = cli("run", f"{file}:typed", "--backend", "mock", *(part for pair in given for part in ("--arg", pair)))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("=> ")[2]) == ["2026-11-30", "bad", "3", 3, "2", [1, 2], True, {"else": []}]


@pytest.mark.parametrize("pair", ["day=tomorrow", "many=[1, two]", "many=3", "mood=ugly", "flag=perhaps"])
def test_argument_of_the_wrong_type_is_refused_by_name(cli: Cli, file: Path, pair: str) -> None:
    day = [] if pair.startswith("day") else ["--arg", "day=2026-11-30"]
    done = cli("run", f"{file}:typed", "--backend", "mock", *day, "--arg", pair)
    assert done.returncode == 2
    assert f"--arg {pair.partition('=')[0]}=" in done.stderr
    assert "Traceback" not in done.stderr


def test_argument_of_a_type_that_no_command_line_has_is_refused(cli: Cli, file: Path) -> None:
    done = cli("run", f"{file}:odd", "--backend", "mock", "--arg", "what=1")
    assert done.returncode == 2
    assert "--arg what" in done.stderr


# --- where the output goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["run", ":ask", "--backend", "mock"], ["run", ":ask", "--backend", "mock", "--stream"],
                                       ["trace", ":ask", "--format", "terminal"], ["models", "list"], ["--help"], ["run", "--help"]])  # fmt: skip
def test_output_that_knows_only_ascii_gets_ascii(file: Path, arguments: list[str]) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C"}
    given = [f"{file}{a}" if a.startswith(":") else a for a in arguments]
    done = subprocess.run(command(*given), capture_output=True, env=plain, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"Traceback" not in done.stderr
    if "run" in arguments and "--help" not in arguments:
        assert b"Gr\\xfc\\xdfe ->" in done.stdout


@pytest.mark.parametrize("options", [[], ["--stream"]], ids=["plain", "stream"])
def test_reader_that_leaves_ends_nothing_with_a_traceback(file: Path, tmp_path: Path, options: list[str]) -> None:
    record = tmp_path / "run.jsonl"
    process = subprocess.Popen(
        command("run", f"{file}:lines", "--backend", "mock", "--save", str(record), *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(60) in (0, 1)
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert load_record(record).program == "lines"


def test_version_and_help(cli: Cli) -> None:
    from importlib.metadata import version

    assert cli("--version").stdout.strip() == f"sglang-dsl {version('sglang-dsl')}"
    assert "Exit codes: 0 done" in cli("--help").stdout
    assert "--picture" in cli("run", "--help").stdout
    assert cli("rum").returncode == 2


PROGRAM = "from sglang_dsl import program\n@program\ndef p(s):\n    s += 'said'\n"


def test_program_of_a_package_imports_its_neighbours(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("TOP = 'top'\n")
    (inner / "__init__.py").write_text("")
    (inner / "near.py").write_text("NEAR = 'near'\n")
    text = "from .. import TOP\nfrom .near import NEAR\n" + PROGRAM.replace("'said'", "TOP + NEAR")
    (inner / "mod.py").write_text(text)
    done = subprocess.run(command("trace", f"{inner / 'mod.py'}:p"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "topnear" in done.stdout


@pytest.mark.parametrize("name", ["json.py", "enum.py", "rich.py", "with blank-ü.py", "1.py"])
def test_file_called_like_a_module_hides_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(PROGRAM)
    done = subprocess.run(command("trace", f"{tmp_path / name}:p"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "said" in done.stdout


def test_file_that_ends_itself_while_it_is_read_is_said(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "exits.py"
    file.write_text(f"import sys\n{PROGRAM}sys.exit(0)\n")
    code, _, err = cli("trace", f"{file}:p")
    assert code != 0
    assert "sys.exit(0)" in err
    assert "__main__" in err
