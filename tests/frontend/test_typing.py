"""mypy and pyright on a user's programs, in a folder elsewhere: the package is found as it was installed (cases: 407)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def mypy(file: Path) -> dict[int, str]:
    """Errors by line. Run from the file's folder, so that no configuration and no copy of the package is at hand."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", file.name]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    found = re.findall(r"^[^:]+:(\d+): error: (.*)$", ended.stdout, re.MULTILINE)
    return {int(line): message for line, message in reversed(found)}  # the first of a line


def pyright(file: Path) -> dict[int, str]:
    """As `mypy`; node comes with the package, so nothing is fetched."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, file.name]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, check=False)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    found = [d for d in json.loads(ended.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    return {d["range"]["start"]["line"] + 1: d["message"] for d in found}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    for name in ("typed_program.py", "typed_mistakes.py"):
        shutil.copy(HERE / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_types_of_a_users_program_are_what_the_checker_sees(checker, elsewhere: Path) -> None:
    assert checker(elsewhere / "typed_program.py") == {}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_each_mistake_is_an_error_in_its_own_line(checker, elsewhere: Path) -> None:
    file = elsewhere / "typed_mistakes.py"
    lines = file.read_text(encoding="utf-8").splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if re.search(r"\S  # ", line)}
    found = checker(file)
    assert set(found) == wanted, found
    assert not any("import" in message for message in found.values())


def test_mypy_says_which_option_was_meant(elsewhere: Path) -> None:
    file = elsewhere / "typed_mistakes.py"
    found = mypy(file)
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if meant := re.search(r"  # (max_tokens|temperature|method|backend|concurrency)$", line):
            assert f'did you mean "{meant[1]}"?' in found[number]
