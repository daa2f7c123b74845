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


def test_readme_program_on_the_mock_prints_two_orders_and_the_tokens(tmp_path: Path) -> None:
    first, second, tokens = run_readme(tmp_path, "mock")
    assert re.fullmatch(r"item='(tent|stove|canoe)' days=-?\d+", first)
    assert re.fullmatch(r"item='(tent|stove|canoe)' days=-?\d+", second)
    asked, computed = map(int, re.findall(r"\d+", tokens))
    assert asked > computed


@pytest.mark.model
def test_readme_program_on_smollm2_prints_what_the_readme_says(tmp_path: Path) -> None:
    """cases: 411"""
    printed = re.search(r"```text\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert printed
    assert run_readme(tmp_path, "local:smollm2") == printed[1].splitlines()


@pytest.mark.model
def test_readme_program_on_smollm2_reads_nineteen_of_twenty_mails_rightly() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_program", "--check"],
        capture_output=True, text=True, cwd=README.parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
