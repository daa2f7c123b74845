"""The README's program, as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def first_program() -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def run_readme(tmp_path: Path, backend: str) -> list[str]:
    script = tmp_path / "readme.py"
    script.write_text(first_program(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_DSL_BACKEND": backend},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_readme_program_on_the_mock_prints_two_verdicts_and_the_tokens(tmp_path: Path) -> None:
    first, second, tokens = run_readme(tmp_path, "mock")
    assert re.fullmatch(r"kind='(complaint|question|praise)' urgent=(True|False)", first)
    assert re.fullmatch(r"kind='(complaint|question|praise)' urgent=(True|False)", second)
    asked, computed = map(int, re.findall(r"\d+", tokens))
    assert asked > computed


@pytest.mark.model
def test_readme_program_on_smollm2_prints_two_verdicts_and_the_tokens(tmp_path: Path) -> None:
    first, _second, tokens = run_readme(tmp_path, "local:smollm2")
    assert first.startswith("kind=")
    asked, computed = map(int, re.findall(r"\d+", tokens))
    assert asked > computed
