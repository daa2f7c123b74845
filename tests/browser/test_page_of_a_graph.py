"""The HTML picture of a graph in headless Chromium: it draws, folds, and answers to clicks and keys."""

import json

import pytest
from drawn_graphs import nasty, router, scored, support_agent, support_outcomes, wide

from sglang_dsl.ir.draw import draw

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def painted(page):
    """What the picture shows: (node id, centre) of everything that can be clicked."""
    return page.evaluate(
        """() => { paint(); return targets.map((t) => [t.node === undefined ? "" : nodes[t.node].id,
        (t.x + t.w / 2) * view.scale + view.x, (t.y + t.h / 2) * view.scale + view.y]); }"""
    )


def test_page_support_agent_is_folded_unfolds_and_folds_again(show, shoot):
    graph = support_agent(40)
    page = show(draw(graph, "html", outcomes=support_outcomes(graph)))
    gens = [spot for spot in painted(page) if spot[0] and graph[spot[0]].kind == "gen"]
    assert len(gens) == 2
    shoot(page, "folded")
    page.click("#fold")
    gens = [spot for spot in painted(page) if spot[0] and graph[spot[0]].kind == "gen"]
    assert len(gens) == 40
    shoot(page, "unfolded")
    page.click("#fold")
    assert len([spot for spot in painted(page) if spot[0] and graph[spot[0]].kind == "gen"]) == 2


def test_page_click_on_a_node_shows_its_exact_prompt_with_origins(show):
    graph = support_agent(3)
    page = show(draw(graph, "html", outcomes=support_outcomes(graph)))
    _, x, y = next(spot for spot in painted(page) if spot[0] and graph[spot[0]].kind == "gen")
    page.mouse.click(x, y)
    panel = page.locator("#panel")
    assert panel.is_visible()
    prompt = page.locator(".prompt").inner_text()
    assert "You are a support agent of a web shop." in prompt
    assert "Ticket 0: the parcel" in prompt
    assert "Ticket 1" not in prompt
    assert "3,050 = 3,000 reused + 50 computed" in panel.inner_text()
    piece = page.locator(".prompt span", has_text="Ticket 0")
    assert "agent.py:14" in piece.get_attribute("title")
    piece.click()
    assert "Ticket 0" in page.locator("#panel h2").inner_text()
    page.keyboard.press("Escape")
    assert panel.is_hidden()


def test_page_search_finds_counts_and_unfolds_what_hides_a_hit(show, shoot):
    graph = support_agent(40)
    page = show(draw(graph, "html"))
    page.keyboard.press("/")
    page.keyboard.type("ticket 17:")
    assert page.locator("#hits").inner_text() == "1"
    page.keyboard.press("Enter")
    assert "Ticket 17" in page.locator("#panel h2").inner_text()
    assert len([spot for spot in painted(page) if spot[0]]) > 10
    shoot(page, "search")


def test_page_text_of_the_program_never_executes(show):
    page = show(draw(nasty(), "html"))
    assert page.title() == '"</title><script>alert(1)</script>'
    for index in range(page.evaluate("nodes.length")):
        page.evaluate(f"goTo({index})")
    assert page.evaluate("document.scripts.length") == 2
    assert page.locator("img, iframe, object, #panel b").count() == 0


def test_page_switch_shows_the_way_taken(show, shoot):
    page = show(draw(router(), "html", outcomes=scored()))
    taken = page.evaluate("fans.find((f) => f.ways).columns.map((c) => [c.label, c.taken])")
    assert taken == [["x", True], ["y", False]]
    page.evaluate("goTo(byId.get('k'))")
    assert page.locator(".scores i").count() == 2
    shoot(page, "switch")


def test_page_themes_and_zoom_by_keys_and_buttons(show):
    page = show(draw(router(), "html"))
    before = page.evaluate("document.documentElement.dataset.theme")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != before
    scale = page.evaluate("view.scale")
    page.keyboard.press("+")
    assert page.evaluate("view.scale") > scale
    page.keyboard.press("f")
    assert page.evaluate("view.scale") == pytest.approx(scale)
    page.click("#in")
    assert page.evaluate("view.scale") > scale
    page.click("#fit")
    assert page.evaluate("view.scale") == pytest.approx(scale)


def test_page_opens_at_a_linked_node(show):
    page = show(draw(router(), "html"), "#k")
    assert page.locator("#panel h2").inner_text() == "select k"


def test_page_of_five_thousand_nodes_paints_smoothly_and_answers_a_search(show, shoot):
    page = show(draw(wide(5000), "html"))
    page.click("#fold")
    times = page.evaluate(
        """() => { const times = [];
        for (const scale of [view.scale, 0.2, 0.5, 1]) { view.scale = scale; view.x = view.y = 0;
          paint(); const start = performance.now(); paint(); times.push(performance.now() - start); }
        return times; }"""
    )
    shoot(page, "wide")
    assert max(times) < 250, json.dumps(times)  # software rendering here; a screen's own GPU is far faster
    page.fill("#query", "Question 1234:")
    page.press("#query", "Enter")
    assert "Question 1234:" in page.locator("#panel").inner_text()
