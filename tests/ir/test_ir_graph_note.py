"""The design note's sample is a sound graph in exactly the printed form."""

import re
from pathlib import Path

from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import findings

NOTE = Path(__file__).parents[2] / "docs" / "graph.md"


def test_graph_note_sample_is_what_print_graph_prints_and_breaks_no_rule():
    (sample,) = re.findall(r"```graph\n(.*?)```", NOTE.read_text("utf-8"), re.S)
    graph = parse(sample)
    assert print_graph(graph) == sample
    assert findings(graph) == []
