"""What holds for every format: no network, no browser, quick, parseable, the same each time."""

import json
import re
import socket
import subprocess
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from drawn_graphs import (
    every_kind,
    long,
    nasty,
    router,
    scored,
    support_agent,
    support_outcomes,
    tree_of_thought,
    wide,
)

from sglang_dsl.errors import SpecError
from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.execution import Meta, Outcome
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Gen
from tests.counted import counted

CALLS_PER_NODE = 1000  # of functions, for a picture of thousands of nodes; measured: up to 750

TEXT_FORMATS = ["terminal", "mermaid", "dot", "svg", "html"]
GRAPHS = [nasty(), every_kind(), router(), support_agent(), tree_of_thought()]
STRING = r'"(?:[^"\\\n]|\\.)*"'


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a picture asked for a network or a program")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("form", [*TEXT_FORMATS, "trace"])
def test_draw_one_node_named_a_without_network_takes_little(form):
    graph = Graph([Gen(id="A", name="A")], name="A")
    outcomes = {"A": Outcome(value="x", text="x", meta=Meta(finished_s=1.0))}
    picture, calls = counted(lambda: draw(graph, form, outcomes=outcomes))
    assert calls < 100_000
    assert "gen A" in picture


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("graph", [wide(), long(), support_agent(830)], ids=lambda g: g.name)
@pytest.mark.parametrize("form", TEXT_FORMATS)
@pytest.mark.parametrize("fold", [None, 12], ids=["unfolded", "folded"])
@pytest.mark.filterwarnings("ignore:.*Mermaid's limits")
def test_draw_five_thousand_nodes_takes_time_by_the_node(graph, form, fold):
    picture, calls = counted(lambda: draw(graph, form, fold=fold))
    assert picture
    assert calls < CALLS_PER_NODE * len(graph)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name[:12])
@pytest.mark.parametrize("form", TEXT_FORMATS)
def test_draw_twice_gives_the_same_text(graph, form):
    assert draw(graph, form) == draw(graph, form)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name[:12])
def test_draw_dot_has_generated_identifiers_and_closed_strings(graph):
    forms = [
        rf"digraph {STRING} \{{",
        r"(graph|node|edge) \[.*\];",
        rf'n\d+ \[label={STRING}(, [a-z]+="[-#\w,]+")*\];',
        r'subgraph cluster_f\d+ \{ style=dashed; color="#\w+";',
        rf"n\d+ -> n\d+ \[style=\w+(, label={STRING})?(, constraint=false, arrowhead=open)?\];",
        r"\}",
    ]
    for line in draw(graph, "dot").splitlines():
        assert any(re.fullmatch(form, line.strip()) for form in forms), line


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name[:12])
def test_draw_svg_is_well_formed_and_holds_no_script_or_link(graph):
    root = ElementTree.fromstring(draw(graph, "svg"))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "path", "text", "g"}
    assert not [a for e in root.iter() for a in e.attrib if a.startswith("on") or a.endswith("href")]


def test_draw_svg_boxes_do_not_overlap():
    for graph in GRAPHS:
        root = ElementTree.fromstring(draw(graph, "svg", fold=None))
        rects = [e.attrib for e in root.iter() if e.tag.endswith("rect") and "x" in e.attrib]
        assert len({(r["x"], r["y"]) for r in rects}) == len(rects)


def test_draw_terminal_tree_indents_branches_and_turns():
    text = draw(support_agent(13), "terminal")
    assert text.splitlines()[:9] == [
        "support_agent  84 nodes, 13 model calls",
        "├── system",
        "│   └── “You are a support agent of a web shop. R … one JSON object.”",
        "├── fork × 13",
        "│   ├── [0]",
        "│   │   ├── user",
        "│   │   │   └── “Ticket 0: the parcel with order number 1 … yet, please help.”",
        "│   │   └── assistant",
        "│   │       └── gen answer  max 192, greedy, json schema",
    ]
    assert "│   └── … 11 more branches" in text


def test_draw_terminal_text_cannot_move_the_cursor():
    graph = Graph([Gen(id="a", name="\x1b[2J\x07bell\u202eback")])
    text = draw(graph, "terminal", outcomes={"a": Outcome(text="\x1b]0;title\x07", meta=Meta())})
    assert all(c.isprintable() or c == "\n" for c in text)


def test_draw_terminal_after_a_run_marks_the_way_taken():
    text = draw(router(), "terminal", outcomes=scored())
    assert "x  taken" in text
    assert "y  not taken" in text
    assert "48 prompt, 41 cached, 20 generated  → By induction." in text


def test_draw_svg_marks_possible_taken_and_untaken_ways():
    before = draw(router(), "svg")
    after = draw(router(), "svg", outcomes=scored())
    assert before.count('class="possible"') == 3
    assert 'class="taken"' not in before
    assert after.count('class="taken"') == 1
    assert after.count('class="possible untaken"') == 1


def test_draw_trace_has_one_bar_per_call_in_lanes_that_do_not_overlap():
    graph = support_agent(6)
    events = json.loads(draw(graph, "trace", outcomes=support_outcomes(graph)))["traceEvents"]
    bars = [e for e in events if e["ph"] == "X" and e["name"] != "prefill"]
    assert len(bars) == 6
    assert bars[0]["args"]["cached_tokens"] == 3000
    for lane in {b["tid"] for b in bars}:
        spans = sorted((b["ts"], b["ts"] + b["dur"]) for b in bars if b["tid"] == lane)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert max(e["args"]["running"] for e in events if e["ph"] == "C") == 6


def test_draw_trace_without_a_run_is_refused():
    with pytest.raises(SpecError, match="needs the outcomes"):
        draw(router(), "trace")


def test_draw_unknown_format_lists_the_known_ones():
    with pytest.raises(SpecError, match="'png' is unknown") as caught:
        draw(router(), "png")
    assert "mermaid" in caught.value.hint


def test_draw_empty_graph_works_in_every_format():
    for form in TEXT_FORMATS:
        assert draw(Graph(), form)


def test_draw_deep_nesting_of_forks_works_in_every_format():
    from sglang_dsl.ir.nodes import Fork

    nodes, context, branch = [], None, None
    for depth in range(500):
        nodes.append(Fork(id=f"f{depth}", context=context, branch=branch, size=1))
        context, branch = f"f{depth}", 0
    graph = Graph([*nodes, Gen(id="g", context=context, branch=0)])
    for form in TEXT_FORMATS:
        assert draw(graph, form)


def test_drawing_is_shown_as_a_picture_by_a_notebook():
    page = draw(nasty(), "html")
    shown = page._repr_mimebundle_()["text/html"]
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    assert shown.count("<") == 2  # the page is an attribute, nothing of it is markup of the notebook
    assert draw(router(), "svg")._repr_mimebundle_()["image/svg+xml"].startswith("<svg")
    assert "digraph" in draw(router(), "dot")._repr_mimebundle_()["text/html"]


def test_draw_finds_what_a_run_gave_inside_arms_turns_and_items():
    given = scored()["x.1"]
    executed = {"k": scored()["k"], "way/0/x.1": given}
    assert "gen proof  48 prompt, 41 cached, 20 generated  → By induction." in draw(
        router(), "terminal", outcomes=executed
    )
    turns = {
        "loop/0/done": Outcome(text="no", meta=Meta(finished_s=1)),
        "loop/1/done": Outcome(text="yes", meta=Meta(finished_s=2)),
    }
    assert "→ yes" in draw(every_kind(), "terminal", outcomes=turns)
    events = json.loads(draw(every_kind(), "trace", outcomes=turns))["traceEvents"]
    assert [e["args"]["node"] for e in events if e["ph"] == "X"] == ["loop/0/done", "loop/1/done"]
