"""No two modules of the package import each other, not even lazily or for types only."""

from __future__ import annotations

import grimp
import networkx as nx


def test_modules_import_each_other_in_no_circle() -> None:
    graph = grimp.build_graph("sglang_dsl")
    imports = nx.DiGraph((m, found) for m in graph.modules for found in graph.find_modules_directly_imported_by(m))
    circles = [sorted(circle) for circle in nx.strongly_connected_components(imports) if len(circle) > 1]
    assert circles == []
