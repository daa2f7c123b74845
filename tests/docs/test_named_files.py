"""Files that pages, docstrings and comments name are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_dsl"
NAMED = re.compile(r"(?<![\w./*{-])((?:[a-z_]+/)*[a-z_]\w*\.py)\b(?!\()")
THEIRS = {  # files of the reader, and of other projects
    "agent.py", "agents.py", "app.py", "my_agents.py", "program.py", "programs.py", "conftest.py", "constants.py", "tensor_mapping.py",
    "convert_hf_to_gguf.py", "example.py", "shop.py", "json.py", "choices.py", "encoder.py", "file.py", "test_agent.py", "my_file.py", "modeling_llama.py", "setup.py", "my_program.py",
}  # fmt: skip


def named_files() -> Iterator[tuple[str, int, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(PACKAGE.rglob("*.py"))):
        if page.name in ("reliability.md", "reference.md"):  # tests by their paths; a page made from docstrings
            continue
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if page.suffix == ".py" and "#" not in line and '"' not in line and "`" not in line:
                continue
            for found in NAMED.finditer(line):
                yield str(page.relative_to(ROOT)), number, found[1]


def exists(page: str, name: str) -> bool:
    places = [ROOT, PACKAGE, PACKAGE / "runtime", (ROOT / page).parent]
    if any((place / name).is_file() for place in places):
        return True
    return any(str(path).endswith("/" + name) for path in PACKAGE.rglob("*.py"))


def test_files_that_pages_docstrings_and_comments_name_are_there() -> None:
    gone = [
        f"{page}:{line} names {name}"
        for page, line, name in named_files()
        if Path(name).name not in THEIRS and not exists(page, name)
    ]
    if gone:
        pytest.fail("\n".join(gone))
