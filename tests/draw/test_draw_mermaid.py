"""Mermaid text that always parses, and says what may happen and what did."""

import re

import pytest
from drawn_graphs import NASTY_TEXTS, every_kind, nasty, router, scored, support_agent

from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.draw.markup import escape_mermaid

LABEL = r'"[^"`<>\[\]{}|\\%&]*(?:<br/>[^"`<>\[\]{}|\\%&]*)*"'
LINES = [
    r"flowchart TD",
    rf"n\d+(\[/{LABEL}/\]|\(\[{LABEL}\]\)|\{{\{{{LABEL}\}}\}}|\[\[{LABEL}\]\]|\{{{LABEL}\}}|\[\({LABEL}\)\]|>{LABEL}\]|\[{LABEL}\])",
    rf"n\d+ (-->|-\.->|==>)(\|{LABEL}\|)? n\d+",
    rf"subgraph f\d+\[{LABEL}\]",
    r"end",
    r"style f\d+ fill:none,stroke:#a9b1bf,stroke-dasharray:4 3",
    r"classDef [a-z_A-Z]+ [-a-z0-9#:,. ]+",
    r"class (n\d+,)*n\d+ [a-z_A-Z]+",
]


def parse(text: str) -> None:
    """Every line is one of the few forms we write: an identifier of ours, a quoted label without a bare special."""
    for line in text.splitlines():
        assert any(re.fullmatch(form, line.strip()) for form in LINES), line


@pytest.mark.parametrize("graph", [nasty(), every_kind(), router(), support_agent()], ids=lambda g: g.name[:12])
@pytest.mark.parametrize("fold", [None, 12])
def test_draw_mermaid_any_text_parses_with_generated_identifiers(graph, fold):
    parse(draw(graph, "mermaid", fold=fold))


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_escape_text_decodes_to_what_it_was(text):
    decoded = re.sub(r"#(\d+);", lambda m: chr(int(m[1])), escape_mermaid(text))
    assert (
        decoded.strip()
        == " ".join("".join(c if c.isprintable() else " " for c in " ".join(text.split())).split(" ")).strip()
    )


def test_draw_mermaid_names_that_differ_in_punctuation_stay_two_nodes():
    text = draw(nasty(), "mermaid")
    assert len(re.findall(r'"gen a-b<br/>', text)) == 1
    assert len(re.findall(r'"gen a\.b<br/>', text)) == 1


def test_draw_mermaid_long_names_and_texts_are_cut():
    assert max(map(len, draw(nasty(), "mermaid").splitlines())) < 400


def test_draw_mermaid_before_a_run_shows_every_way_as_possible():
    text = draw(router(), "mermaid")
    assert re.search(r'n\d+ -\.->\|"x"\| n\d+', text)
    assert re.search(r'n\d+ -\.->\|"y"\| n\d+', text)
    assert re.search(r'n\d+ -\.->\|"any"\| n\d+', text)
    assert "==>" not in text


def test_draw_mermaid_after_a_run_marks_the_way_taken_and_counts_tokens():
    text = draw(router(), "mermaid", outcomes=scored())
    assert re.search(r'n\d+ ==>\|"x"\| n\d+', text)
    assert not re.search(r'n\d+ ==>\|"y"\| n\d+', text)
    assert re.search(r'n\d+ -\.->\|"y"\| n\d+', text)
    assert "48 prompt, 41 cached, 20 generated" in text


def test_draw_mermaid_wide_fork_is_folded_to_two_branches_and_a_count():
    text = draw(support_agent(), "mermaid")
    assert text.count("gen answer") == 2
    assert "… 38 more branches" in text.replace("#8230;", "…")
    assert draw(support_agent(), "mermaid", fold=None).count("gen answer") == 40
