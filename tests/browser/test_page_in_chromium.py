"""The HTML picture in headless Chromium: open it, click, search, unfold; prompt text never runs and nothing is fetched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")

from examples.support_agent import triage  # noqa: E402
from examples.support_desk import tickets  # noqa: E402
from sglang_dsl import RunOptions, State, gen, program, user  # noqa: E402
from sglang_dsl.ir.graph import Graph  # noqa: E402
from sglang_dsl.ir.nodes import Fork, Gen, Plain, Text  # noqa: E402
from sglang_dsl.testing import mock  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>]]--> ${window.hacked=3}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium; `make test-browser` installs it")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    pages = []

    def open_page(html: str) -> Any:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.requests, page.faults = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("console", lambda line: page.faults.append(line.text) if line.type == "error" else None)
        page.goto(file.as_uri())
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert page.faults == []
        assert all(url.startswith("file:") for url in page.requests)
        page.close()


@pytest.fixture(scope="module")
def support_page() -> str:
    with mock(unscripted="schema") as backend:
        return triage.run(tickets(40), options=RunOptions(backend=backend, seed=0)).draw("html")


def test_page_shows_the_program_and_its_figures(show: Any, support_page: str, tmp_path: Path) -> None:
    page = show(support_page)
    assert page.locator("#name").inner_text() == "triage"
    facts = page.locator("#facts").inner_text()
    assert "40 model calls" in facts.replace("\n", " ")
    picture = tmp_path / "page.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size > 10_000


def test_click_on_the_shared_preamble_shows_its_prompt_and_how_many_calls_share_it(
    show: Any, support_page: str
) -> None:
    page = show(support_page)
    spot = page.evaluate("(() => { const s = spotOf(nodes.find(n => n.kind === 'text').index); return [s.x, s.y] })()")
    at = page.evaluate(f"[{spot[0]} * view.scale + view.x + 20, {spot[1]} * view.scale + view.y + 8]")
    page.mouse.click(*at)
    panel = page.locator("#panel").inner_text()
    assert "You are Lark" in panel
    assert "in the prompt of 40 calls" in panel


def test_search_finds_a_ticket_in_a_folded_branch_and_unfolds_it(show: Any, support_page: str) -> None:
    page = show(support_page)
    page.fill("#query", "FF-26443")
    assert int(page.locator("#hits").inner_text()) >= 1
    page.press("#query", "Enter")
    assert page.locator("#hits").inner_text().startswith("1/")
    assert "FF-26443" in page.locator("#panel").inner_text()


def test_fold_button_unfolds_all_forty_branches_and_folds_them_again(show: Any, support_page: str) -> None:
    page = show(support_page)
    folded = page.evaluate("root.w")
    page.click("#fold")
    assert page.locator("#fold").inner_text() == "Fold"
    assert page.evaluate("root.w") > 2 * folded
    page.click("#fold")
    assert page.evaluate("root.w") == folded


def test_zoom_buttons_and_keys_change_the_scale(show: Any, support_page: str) -> None:
    page = show(support_page)
    before = page.locator("#scale").inner_text()
    page.click("#in")
    assert page.locator("#scale").inner_text() != before
    page.click("#fit")
    assert page.locator("#scale").inner_text() == before


def test_prompt_text_and_names_never_run(show: Any) -> None:
    @program
    def evil(s: State, text: str) -> None:
        s += user(text)
        s += gen(HOSTILE)

    with mock(emits=[HOSTILE]) as backend:
        page = show(evil.run(HOSTILE, options=RunOptions(backend=backend)).draw("html"))
    page.fill("#query", "hacked")
    for _ in range(int(page.locator("#hits").inner_text())):
        page.press("#query", "Enter")
    assert HOSTILE in page.locator("#panel").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#panel img").count() == 0


def test_five_thousand_nodes_open_and_answer_a_search(show: Any) -> None:
    graph = Graph(name="wide")
    graph.append(Text(id="head", pieces=(Plain("shared"),)))
    graph.append(Fork(id="fork", size=2499, context="head"))
    for i in range(2499):
        graph.append(Text(id=f"t{i}", context="fork", branch=i, pieces=(Plain(f"item {i}"),)))
        graph.append(Gen(id=f"g{i}", context=f"t{i}", name=f"answer{i}"))
    from sglang_dsl.ir.draw import draw

    page = show(draw(graph, "html"))
    page.fill("#query", "item 2400")
    page.press("#query", "Enter")
    assert "item 2400" in page.locator("#panel").inner_text()
