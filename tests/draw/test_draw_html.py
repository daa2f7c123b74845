"""The page: one file, nothing to fetch, no text of the program can act."""

import json
import re
from html.parser import HTMLParser

import pytest
from drawn_graphs import every_kind, long, nasty, router, scored, support_agent, support_outcomes, tree_of_thought, wide

from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.draw.html import script_safe_json
from sglang_dsl.ir.execution import Segment
from sglang_dsl.ir.nodes import RoleBegin, Text
from tests.counted import counted


class Tags(HTMLParser):
    """Start tags with their attributes, and the data of script elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found, self.scripts, self.inside = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self.inside = ""


def data_of_page(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="graph">(.*?)</script>', page, re.S)[1])


GRAPHS = [nasty(), every_kind(), router(), support_agent(), tree_of_thought()]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name[:12])
def test_draw_html_holds_exactly_our_two_scripts_and_loads_nothing(graph):
    tags = Tags(draw(graph, "html"))
    assert [a.get("type") for t, a in tags.found if t == "script"] == ["application/json", None]
    assert not [t for t, _ in tags.found if t in {"img", "link", "iframe", "object", "base"}]
    assert not [a for _, a in tags.found if {"src", "href"} & a.keys() or any(k.startswith("on") for k in a)]


def test_draw_html_policy_allows_the_one_script_by_its_hash_only():
    import base64
    import hashlib

    page = draw(nasty(), "html")
    tags = Tags(page)
    policy = next(a["content"] for t, a in tags.found if t == "meta" and "http-equiv" in a)
    script = "".join(tags.scripts[1:])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_draw_html_script_puts_text_in_as_text_only():
    script = "".join(Tags(draw(nasty(), "html")).scripts[1:])
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "fetch(",
        "XMLHttpRequest",
        "import(",
    ):
        assert way not in script


def test_script_safe_json_cannot_end_its_element_and_reads_back():
    data = {"text": "</script><!-- <script> \u2028 & ]]>"}
    text = script_safe_json(data)
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == data


def test_draw_html_text_that_looks_like_a_slot_stays_text():
    data = data_of_page(draw(nasty(), "html"))
    assert any(["plain", "@@SCRIPT@@"] in node["segments"] for node in data["nodes"])


def test_draw_html_pieces_know_the_value_they_come_from():
    node = next(n for n in data_of_page(draw(every_kind(), "html"))["nodes"] if n["kind"] == "text")
    assert node["segments"] == [["plain", "Plain "], ["raw", "<|raw|>"], ["value", "{topics[0]}", "topics"]]


def test_draw_html_shared_prefix_is_counted_per_call_and_per_way():
    data = data_of_page(draw(support_agent(), "html"))
    preamble = next(n for n in data["nodes"] if n["kind"] == "text")
    assert (preamble["users"], preamble["ways"]) == (40, 40)
    private = next(n for n in data["nodes"] if n.get("branch") == 0)
    assert (private["users"], private["ways"]) == (1, 1)


def test_draw_html_after_a_run_holds_values_and_token_counts():
    data = data_of_page(draw(router(), "html", outcomes=scored()))
    by_id = {n["id"]: n for n in data["nodes"]}
    assert by_id["k"]["outcome"]["choices"] == [["x", -0.2], ["y", -1.7]]
    assert by_id["x.1"]["outcome"]["tokens"] == [48, 41, 7, 20]
    assert "outcome" not in by_id["y.1"]


class FakeMeter:
    """Renders roles as markers, one token a character."""

    model = "tiny"
    context_tokens = 4096
    kv_bytes_per_token = 8

    def __init__(self):
        self.rendered = 0

    def render(self, path, values):
        self.rendered += 1
        for node in path:
            if isinstance(node, RoleBegin):
                yield Segment(node_id=node.id, text=f"<|{node.role}|>", token_ids=(1,), control=True)
            elif isinstance(node, Text):
                for piece in node.pieces:
                    words = getattr(piece, "text", "?")
                    yield Segment(node_id=node.id, text=words, token_ids=tuple(range(len(words))))


def test_draw_html_with_a_meter_shows_the_models_own_text_and_tokens():
    data = data_of_page(draw(support_agent(2), "html", meter=FakeMeter()))
    assert data["model"] == "tiny"
    assert data["nodes"][0]["segments"] == [["control", "<|system|>", "0", 1]]
    assert data["nodes"][1]["segments"][0][3] == len(data["nodes"][1]["segments"][0][1])


def test_draw_html_with_a_meter_keeps_where_each_piece_comes_from_in_sub_graphs_too():
    by_id = {n["id"]: n for n in data_of_page(draw(router(), "html", meter=FakeMeter()))["nodes"]}
    assert by_id["5"]["segments"] == [["value", "?", "question", 1]]
    assert by_id["x.0"]["segments"] == [["plain", "\nA good proof is: ", "x.0", 18]]


@pytest.mark.parametrize("graph", [wide(), long()], ids=lambda g: g.name)
def test_draw_html_five_thousand_nodes_take_time_by_the_node(graph):
    page, calls = counted(lambda: draw(graph, "html"))
    assert calls < 300 * len(graph)
    assert len(data_of_page(page)["nodes"]) >= 5000


def test_draw_html_is_the_same_each_time_and_can_be_written(tmp_path):
    graph = support_agent(3)
    page = draw(graph, "html", outcomes=support_outcomes(graph), path=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page == draw(graph, "html", outcomes=support_outcomes(graph))
