"""A headless Chromium, and pages that fail the test for any fault, dialog or request of theirs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "draw"))  # its hand-built graphs are shown here, too

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium; `make test-browser` installs it")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the HTML of a picture: `show(html)`, or `show(html, "#node")` at a node."""
    faults: list[str] = []
    pages = []

    def open_page(html: str, fragment: str = "") -> Any:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        page = browser.new_page(viewport={"width": 1300, "height": 850})
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: faults.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri() + fragment)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert faults == []


@pytest.fixture
def shoot() -> Any:
    """Keeps a screenshot where SHOTS names a folder, to look at. Returns its size in bytes."""

    def taken(page: Any, name: str) -> int:
        folder = os.environ.get("SHOTS")
        return len(page.screenshot(path=f"{folder}/{name}.png" if folder else None))

    return taken
