"""docs/reliability.md names a test for everything it claims; each of them has to exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
CITED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
FAULTS = (*range(1, 35), *range(57, 63))
CASES = (1, 2, 4, 6, 7, 9, 11, 13, 14, 15, 16, 18, 36, 37, 38, 40, 45, 61, 64, 66, 67, 69, 70, 71)

SECOND_LIST = (
    *(101, 102, 106, 107, 108, 111, 112, 117, 121, 122, 123, 124),
    *(201, 202, 204, 205, 206, 207, 208, 209, *range(210, 220), 226),
    *(*range(301, 316), *range(401, 412), *range(501, 509), *range(701, 707)),
)


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def rows_of(heading: str) -> dict[int, str]:
    """Rows of the table under a heading, by the number they begin with."""
    part = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    return {int(number): row for number, row in re.findall(r"^\| (\d+) \|(.*)$", part, re.MULTILINE)}


def test_register_cites_tests_that_exist():
    assert len(CITED) > 100
    assert [f"{path}::{name}" for path, name in CITED if name not in functions_of(path)] == []


def test_register_has_every_fault_with_a_test_or_why_it_cannot_exist():
    rows = rows_of("Faults of other engines")
    assert tuple(rows) == FAULTS
    assert [number for number, row in rows.items() if "::" not in row and "cannot exist" not in row] == []


def test_register_has_every_case_with_a_test():
    rows = rows_of("Cases")
    assert tuple(rows) == CASES
    assert [number for number, row in rows.items() if "::" not in row] == []


def test_register_has_every_case_of_the_second_list_with_a_test():
    rows = rows_of("Cases, second list")
    assert tuple(rows) == SECOND_LIST
    assert [number for number, row in rows.items() if "::" not in row] == []
