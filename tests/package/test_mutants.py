"""The driver of `make mutants` makes the changes it says, and only where a test could notice."""

from __future__ import annotations

import ast
import gc
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutants() -> Any:
    spec = importlib.util.spec_from_file_location("driver_of_mutants", TESTS / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("x = a < b", {"a <= b"}),
        ("x = a + b", {"(a - b)"}),
        ("x = a and b", {"(a or b)", "(a)", "(b)"}),
        ("x = not a", {"(a)"}),
        ("x = 1", {"2"}),
        ("x = True", {"False"}),
        ("f(a)", {"pass"}),
        ("a.b = c", {"pass"}),
        ("x = min(a)", {"max(a)"}),
        ("x = a if b else c", {"(c if b else a)"}),
        ("if a:\n    b", {"True", "False"}),
        ("x = [a for a in b if c]", {"True"}),
        ("for a in b:\n    break", {"pass"}),
        ("def f():\n    return a", {"return None"}),
    ],
)
def test_change_is_one_of_those_named(mutants: Any, source: str, after: set[str]) -> None:
    found = list(mutants.mutants_of("room", "file.py", source.encode()))
    assert {mutant.after for mutant in found} == after
    for mutant in found:
        ast.parse(mutant.apply(source.encode()))


@pytest.mark.parametrize(
    "source",
    [
        "x: Literal[1] = a",
        "def f(a: X | Y) -> A | B: ...",
        "raise Error(f'{a + 1}', hint=a + 1)",
        "@dataclass(frozen=True)\nclass A:\n    b: int",
        "def __repr__(self):\n    return a + b",
        "class A(Protocol):\n    def f(self):\n        return a + b",
    ],
)
def test_types_texts_and_messages_are_left_alone(mutants: Any, source: str) -> None:
    changed = [m for m in mutants.mutants_of("room", "file.py", source.encode()) if not m.before.startswith("raise")]
    assert changed == []


@pytest.fixture
def no_collection() -> Iterator[None]:
    """CPython 3.11 counts recursion wrongly where the collector ends greenlets while `ast.parse` builds a tree."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_sources_of_all_rooms_have_mutants_that_compile(mutants: Any) -> None:
    for room in mutants.ROOMS:
        files = sorted((TESTS.parent / "sglang_dsl/runtime" / room).rglob("*.py"))
        assert files
        for file in files:
            source = file.read_bytes()
            found = list(mutants.mutants_of(room, str(file), source))
            for mutant in found[:: max(1, len(found) // 20)]:
                ast.parse(mutant.apply(source))


def test_help_is_shown() -> None:
    shown = subprocess.run(
        [sys.executable, str(TESTS / "mutants.py"), "--help"], capture_output=True, text=True, check=True
    )
    assert "--check" in shown.stdout
