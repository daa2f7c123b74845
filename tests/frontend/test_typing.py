"""mypy on a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_types_of_a_users_program_are_what_mypy_sees():
    program = Path(__file__).with_name("typed_program.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", program]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stdout
