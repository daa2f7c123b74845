"""The page of a run in which things went wrong: what its lines say, how it is read by keyboard, small, and in frames that
begin hidden (cases: 402, 403).
"""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "draw"))
from drawn_graphs import tree_of_thought

from sglang_dsl import Result, RunOptions, State, gen, program, select, system, tool
from sglang_dsl.errors import ToolError
from sglang_dsl.ir.draw import draw
from sglang_dsl.testing import mock

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@tool
def broken(x: str) -> str:
    """Fails."""
    raise ValueError("no such order")


@program
def mixed(s: State) -> Any:
    s += system("You write poems.")
    s += "Draft " + gen("draft", max_tokens=4)
    (judge,) = s.fork(1)
    judge += "Judge" + gen("verdict", max_tokens=4)
    s += "Next" + gen("next", max_tokens=4)
    racers = s.fork(3)
    for index, racer in enumerate(racers):
        racer += f"Way {index}:" + gen("way", max_tokens=2 + 20 * index)
    s += "Meanwhile " + gen("meanwhile", max_tokens=5)
    racers.first("way")
    s += "It is " + select("pick", ["yes", "no"])
    s += "Scored" + gen("scored", max_tokens=3, logprobs=1)
    return s.call(broken, x="1").value


@pytest.fixture(scope="module")
def result() -> Result[Any]:
    with mock(unscripted="echo") as backend, pytest.raises(ToolError) as caught:
        mixed.run(options=RunOptions(backend=backend, seed=1))
    found: Result[Any] = caught.value.result
    return found


@pytest.fixture(scope="module")
def failed_page(result: Result[Any]) -> str:
    return result.draw("html")


def flows(page: Any) -> set[tuple[str, str]]:
    """What the lines on the canvas say, by title; a turn's marker stands for what is in it."""
    pairs = page.evaluate("(() => { view.x = view.y = 0; view.scale = 0.05; paint(); return flows; })()")
    titles = page.evaluate("nodes.map((n) => n.title)")
    return {(titles[a], titles[b]) for a, b in pairs}


def test_lines_of_the_page_are_the_edges_of_the_graph(show: Any, failed_page: str, shoot: Any) -> None:
    page = show(failed_page)
    shoot(page, "failed")
    drawn = flows(page)
    assert ("fork × 1", "Judge") in drawn
    assert ("fork × 1", "Next") in drawn
    assert not [edge for edge in drawn if edge[0] in ("gen verdict", "Judge")]
    for source in ("gen way", "gen meanwhile"):
        assert (source, "join way (first 1)") in drawn
    assert ("gen way", "Meanwhile") not in drawn


def test_side_branch_stands_to_the_side_of_the_line(show: Any, failed_page: str) -> None:
    page = show(failed_page)
    where = page.evaluate(
        "Object.fromEntries(['Draft', 'Judge', 'Next'].map((t) => [t, spotOf(nodes.findIndex((n) => n.title === t))]))"
    )
    assert where["Draft"]["x"] == where["Next"]["x"]
    assert where["Judge"]["x"] > where["Next"]["x"] + where["Next"]["w"] / 2


def test_no_line_of_a_tree_of_thought_begins_or_ends_in_mid_air(show: Any) -> None:
    page = show(draw(tree_of_thought(), "html"))
    loose = page.evaluate(
        """() => { const at = []; const plain = curve; const ends = [];
        curve = (...a) => { ends.push([a[0], a[1]], [a[2], a[3]]); plain(...a); };
        const straight = line; line = (...a) => { ends.push([a[0], a[1]], [a[2], a[3]]); straight(...a); };
        view.scale = 0.05; paint(); curve = plain; line = straight;
        const key = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
        const seen = new Map(); for (const end of ends) seen.set(key(end), (seen.get(key(end)) || 0) + 1);
        const boxes = []; (function walk(b) {
          if (b.type === "sequence") b.items.forEach(walk);
          else if (b.type === "card") boxes.push(b);
          else { boxes.push(b.head, ...(b.ways ? b.shown : []), ...(b.framed ? [b.inner] : [])); b.shown.forEach((c) => walk(c.body)); }
        })(root);
        const touches = ([x, y]) => boxes.some((t) => x >= t.x - 1 && x <= t.x + t.w + 1 && y >= t.y - 1 && y <= t.y + t.h + 1);
        return ends.filter((end) => seen.get(key(end)) === 1 && !touches(end)); }"""
    )
    assert loose == []


def test_failures_are_red_counted_and_found_by_their_error(
    show: Any, failed_page: str, result: Result[Any], shoot: Any
) -> None:
    scored = next(o.meta.token_scores for o in result.outcomes.values() if o.meta is not None and o.meta.token_scores)
    page = show(failed_page)
    assert "1 failed" in page.locator("#facts").inner_text().replace("\n", " ")
    page.fill("#query", "no such order")
    page.press("#query", "Enter")
    assert "tool" in page.locator("#panel h2").inner_text()
    assert "ValueError: no such order" in page.locator("#panel pre.failed").inner_text()
    assert page.evaluate("shadeOf(nodes.find((n) => n.kind === 'tool'))") == "break"
    assert page.evaluate("nodes.filter((n) => n.title === 'gen way').map((n) => isStruck(n))") == [False, True, True]
    shoot(page, "failure")
    page.evaluate("goTo(nodes.findIndex((n) => n.title === 'gen scored'))")
    assert page.locator(".chances span").count() == len(scored)


def test_keys_go_from_node_to_node_and_a_question_mark_lists_them(show: Any, failed_page: str, shoot: Any) -> None:
    page = show(failed_page)
    titles = []
    for _ in range(4):
        page.keyboard.press("n")
        titles.append(page.locator("#panel h2").inner_text())
    assert titles == ["begin system", "You write poems.", "Draft", "gen draft"]
    page.keyboard.press("p")
    assert page.locator("#panel h2").inner_text() == "Draft"
    page.keyboard.press("d")
    assert page.locator("#panel h2").inner_text() == "gen draft"
    page.keyboard.press("u")
    assert page.locator("#panel h2").inner_text() == "Draft"
    page.keyboard.press("e")
    assert "tool" in page.locator("#panel h2").inner_text()
    page.keyboard.press("?")
    assert "next failure" in page.locator("#help").inner_text()
    shoot(page, "keys")
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    assert page.locator("#panel").is_visible()


def test_timeline_shows_each_call_and_leads_to_it(show: Any, failed_page: str, shoot: Any) -> None:
    page = show(failed_page)
    page.keyboard.press("t")
    assert page.locator("#timeline").is_visible()
    bars = page.evaluate("bars.map((b) => [b.name, b.times])")
    assert [name for name, _ in bars if name in ("gen draft", "select pick")] == ["gen draft", "select pick"]
    assert all(a <= b <= d and c <= d for _, (a, b, c, d) in bars)
    box = page.locator("#bars").bounding_box()
    spot = page.evaluate("[bars[0].x + 4, 12]")
    page.mouse.click(box["x"] + spot[0], box["y"] + spot[1])
    assert page.locator("#panel h2").inner_text() == "gen draft"
    shoot(page, "timeline")
    page.keyboard.press("t")
    assert page.locator("#timeline").is_hidden()


def test_small_cards_keep_one_line_and_the_page_fits_a_narrow_window(show: Any, failed_page: str, shoot: Any) -> None:
    page = show(failed_page)
    page.set_viewport_size({"width": 420, "height": 760})
    written = page.evaluate(
        """() => { fit(); const said = []; const plain = brush.fillText.bind(brush);
        brush.fillText = (text, ...rest) => { said.push(text); plain(text, ...rest); };
        paint(); return [view.scale, said]; }"""
    )
    assert written[0] < 0.42
    assert {"gen draft", "gen next"} <= set(written[1])
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    shoot(page, "narrow")


@pytest.mark.parametrize("hidden", ["display:none", "width:0;height:0", "visibility:hidden;width:0;height:300px"])
def test_page_in_a_frame_that_begins_hidden_fits_when_it_is_shown(
    browser: Any, failed_page: str, tmp_path: Path, hidden: str
) -> None:
    frame = f'<iframe id="f" sandbox="allow-scripts" style="border:0;{hidden}" srcdoc="{html.escape(failed_page)}"></iframe>'
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{frame}</body>", encoding="utf-8")
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    page.goto((tmp_path / "notebook.html").as_uri())
    page.wait_for_timeout(200)
    page.evaluate("document.getElementById('f').style.cssText = 'width:1000px;height:620px;border:0'")
    page.wait_for_timeout(400)
    inside = page.frames[1]
    seen = inside.evaluate(
        """() => ({ scale: view.scale, top: view.y, left: view.x, right: view.x + root.w * view.scale, fitted,
        ink: (() => { const d = brush.getImageData(0, 0, canvas.width, canvas.height).data; const seen = new Set();
          for (let i = 0; i < d.length; i += 404) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size; })() })"""
    )
    assert seen["fitted"]
    assert seen["scale"] > 0.2
    assert 0 <= seen["left"] < seen["right"] <= 1000
    assert seen["ink"] > 10
    page.close()
