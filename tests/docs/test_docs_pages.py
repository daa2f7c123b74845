"""Every page with code runs as printed, on the mock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, run_page

PAGES = {
    "guide.md": 30,
    "testing.md": 8,
    "from_sglang.md": 3,
    "from_guidance.md": 5,
    "from_langgraph.md": 5,
    "from_dspy.md": 8,
}


@pytest.mark.filterwarnings("error::sglang_dsl.errors.ChoiceBlankWarning")
@pytest.mark.parametrize("name", PAGES)
def test_page_runs_as_printed(name: str, tmp_path: Path) -> None:
    assert run_page(name, tmp_path) >= PAGES[name]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_between_pages_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, heading = target.partition("#")
        found = (page.parent / file) if file else page
        assert found.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in headings(found), f"{page.name}: {target}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_on_the_map(page: Path) -> None:
    assert page.name == "index.md" or f"({page.name})" in (DOCS / "index.md").read_text(encoding="utf-8")


def headings(page: Path) -> set[str]:
    """Anchors as they are made on the web: lower case, without punctuation, spaces as dashes."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
