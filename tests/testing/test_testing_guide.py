"""Every snippet of docs/testing.md runs, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_guide_to_testing_runs_as_printed(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(snippets) >= 8
    file = tmp_path / "guide.py"
    file.write_text("\n".join(snippets), encoding="utf-8")
    namespace: dict[str, Any] = {"folder": tmp_path}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    assert callable(namespace["test_triage"])
