from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_dsl.errors import GoldenError
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Gen, Plain, Text
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.testing import check_golden, compare

TEXT = Text(id="t", pieces=(Plain("Say: "),))
GEN = Gen(id="g", name="a", context="t", sampling=SamplingSpec(max_tokens=8))
GRAPH = Graph([TEXT, GEN], name="p")


def test_golden_graph_is_written_on_request_and_equal_after(tmp_path: Path) -> None:
    path = tmp_path / "golden" / "p.graph"
    with pytest.raises(GoldenError, match="--update-golden"):
        check_golden(GRAPH, path)
    check_golden(GRAPH, path, update=True)
    check_golden(GRAPH, path)


def test_golden_graph_names_the_field_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "p.graph"
    check_golden(GRAPH, path, update=True)
    hotter = replace(GEN, sampling=SamplingSpec(max_tokens=8, temperature=0.5))
    with pytest.raises(GoldenError, match=r"changed g: sampling was .*temperature=1.0.*is .*temperature=0.5"):
        check_golden(Graph([TEXT, hotter], name="p"), path)


def test_golden_comparison_lists_added_removed_and_moved_nodes() -> None:
    other = Text(id="u", pieces=(Plain("x"),))
    kinds = {
        (c.node_id, c.kind) for c in compare(Graph([TEXT, other]), Graph([other, TEXT, replace(GEN, context="u")]))
    }
    assert kinds == {("g", "added"), ("u", "moved")}
    assert [str(c) for c in compare(GRAPH, Graph([TEXT]))] == ["removed g: it was a gen"]


PROGRAM_TESTS = """
from sglang_dsl import RunOptions, gen, program

@program
def p(s):
    s += "Say: "
    s += gen("a")
    return s["a"]

def test_used(mock_backend):
    assert p.run(options=RunOptions(backend=mock_backend({"a": "x"}))).value == "x"

def test_unused(mock_backend):
    mock_backend(["left over"])

def test_graph(golden):
    golden(p.trace())

def test_tape(cassette_file):
    assert p.run(options=RunOptions(backend=cassette_file(backend="mock"))).value
"""


def pytest_in(folder: Path, *options: str) -> str:
    plugin = ["-p", "no:sglang_dsl", "-p", "sglang_dsl.testing.plugin"]  # as installed, and once only
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *plugin, *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100).stdout


def test_plugin_fixtures_check_scripts_graphs_and_cassettes(tmp_path: Path) -> None:
    (tmp_path / "test_programs_of_a_user.py").write_text(PROGRAM_TESTS)
    first = pytest_in(tmp_path, "--update-golden")
    assert "4 passed, 1 error" in first
    assert "1 scripted replies were not used: reply 0: 'left over'" in first
    assert (tmp_path / "cassettes" / "test_tape.jsonl").exists()
    again = pytest_in(tmp_path, "--cassettes=replay")
    assert "4 passed, 1 error" in again
