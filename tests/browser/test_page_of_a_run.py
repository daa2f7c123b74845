"""The HTML picture of a run in headless Chromium: what the program said, asked and got; its text never runs."""

from __future__ import annotations

from typing import Any

import pytest

from examples.support_agent import triage
from examples.support_desk import tickets
from sglang_dsl import RunOptions, State, gen, program, user
from sglang_dsl.testing import mock

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>]]--> ${window.hacked=3}"


@pytest.fixture(scope="module")
def support_page() -> str:
    with mock(unscripted="schema") as backend:
        return triage.run(tickets(40), options=RunOptions(backend=backend, seed=0)).draw("html")


def test_page_shows_the_program_and_its_figures(show: Any, shoot: Any, support_page: str) -> None:
    page = show(support_page)
    assert page.locator("#name").inner_text() == "triage"
    facts = page.locator("#facts").inner_text()
    assert "40 model calls" in facts.replace("\n", " ")
    assert shoot(page, "run") > 10_000


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


def test_prompt_of_a_call_is_the_one_the_model_got(show: Any) -> None:
    @program
    def ask(s: State) -> None:
        s += user("Name a metal.")
        with s.assistant():
            s += "It is " + gen("metal")

    with mock(["zinc"]) as backend:
        page = show(ask.run(options=RunOptions(backend=backend)).draw("html"))
        prompt = backend.calls("metal")[0].prompt
    page.evaluate("goTo(nodes.find((node) => node.kind === 'gen').index)")
    assert page.locator(".prompt").text_content() == prompt + "zinc"
    tokens = backend.calls("metal")[0].request.prompt_ids
    assert f"{len(tokens) + 1} tokens · mock" in page.locator("#panel").inner_text()


def test_search_finds_a_ticket_in_a_folded_branch_and_unfolds_it(show: Any, support_page: str) -> None:
    page = show(support_page)
    page.fill("#query", "FF-26443")
    assert int(page.locator("#hits").inner_text()) >= 1
    page.press("#query", "Enter")
    assert page.locator("#hits").inner_text().startswith("1/")
    assert "FF-26443" in page.locator("#panel").inner_text()


def test_prompt_text_names_and_answers_never_run(show: Any) -> None:
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
