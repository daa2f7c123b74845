"""The page of models says what is so: each architecture equals transformers, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

from benchmarks.load_matrix import compare, names

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
RESULTS = {
    cells[1].strip(): cells[2].strip()
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and len(cells := line.split("|")) > 4
}
FEW = ["gemma2", "gpt_oss", "hunyuan_v1_moe", "mistral", "llama + yarn", "bloom", "mamba2", "qwen3_next"]


def test_the_page_lists_every_architecture_and_no_wrong_one() -> None:
    assert [name for name in RESULTS if name != "architecture"] == names()
    assert set(RESULTS.values()) - {"result"} == {"equal", "refused", "not tried"}
    assert sum(result == "equal" for result in RESULTS.values()) > 93


@pytest.mark.parametrize("name", FEW)
def test_some_architectures_are_as_the_page_says(name: str) -> None:
    """cases: 226 among them."""
    outcome = compare(name)
    assert outcome.status == {"not tried": "not built"}.get(RESULTS[name], RESULTS[name]), outcome.detail


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in names() if name not in FEW])
def test_every_architecture_is_as_the_page_says(name: str) -> None:
    outcome = compare(name)
    assert outcome.status == {"not tried": "not built"}.get(RESULTS[name], RESULTS[name]), outcome.detail
