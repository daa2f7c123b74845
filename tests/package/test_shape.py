"""The package stays small enough to find one's way in: how long its files are, and how deep their imports."""

from __future__ import annotations

from pathlib import Path

import sglang_dsl
from benchmarks.one_call import MAX_CHAIN, longest_chain

PACKAGE = Path(sglang_dsl.__file__).parent
MAX_LINES = 500


def test_modules_import_in_short_chains() -> None:
    chain = longest_chain(PACKAGE)
    assert len(chain) <= MAX_CHAIN, " -> ".join(chain)


def test_no_file_is_too_long_to_read() -> None:
    lines = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
