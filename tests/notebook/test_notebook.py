"""A notebook is executed: graphs, results, explanations, usage and drawings show themselves, and runs show live (cases: 403)."""

from __future__ import annotations

from typing import Any

import pytest

CELLS = [
    """
from sglang_dsl import RunOptions, gen, program, tool, use
from sglang_dsl.ir.draw import draw
from sglang_dsl.testing import mock

@program
def poem(s, topic: str = "<b>snow</b>"):
    s += f"About {topic}: " + gen("line", max_tokens=8)
    return s["line"]

@program
def broken(s):
    s += "x" + gen("line", max_tokens=8)
    s["line"]
    raise ValueError("of the user's own")

backend = mock(unscripted="echo")
options = RunOptions(backend=backend, seed=1)
""",
    "poem.trace('snow')",
    "result = poem.run(options=options)\nresult",
    "result.usage",
    "with use(options):\n    explained = poem.explain('snow')\nexplained",
    "result.draw('svg')",
    "result.draw('html')",
    "text = str(explained), result.draw('terminal')\ndraw(poem.trace('snow'), 'mermaid')",
    "poem.stream(options=options)",
    "running = poem.start(options=options)\nrunning",
    "running.result().value",
    "broken.stream(options=options)",
    "try:\n    broken.run(options=options)\nexcept ValueError as error:\n    failed = error.result\nfailed",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    folder = str(tmp_path_factory.mktemp("notebook"))
    nbclient.NotebookClient(
        notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    return [cell.outputs for cell in notebook.cells]


def shown(outputs: list[list[dict[str, Any]]], cell: int) -> dict[str, str]:
    found = [output["data"] for output in outputs[cell] if "data" in output]
    assert len(found) == 1, outputs[cell]
    return found[0]


@pytest.mark.timeout(200)
def test_graphs_results_and_pages_are_shown_as_pages(outputs: list[list[dict[str, Any]]]) -> None:
    for cell in (1, 2, 6, 12):
        page = shown(outputs, cell)
        assert page["text/html"].startswith('<iframe sandbox="allow-scripts"')
        assert page["text/html"].count("<") == 2
        assert page["text/plain"]
    assert "Graph('poem'" in shown(outputs, 1)["text/plain"]
    assert "<Result poem" in shown(outputs, 2)["text/plain"]
    assert "failed" in shown(outputs, 12)["text/html"] or "ValueError" in shown(outputs, 12)["text/plain"]


def test_usage_explanation_svg_and_text_are_shown_in_their_own_ways(outputs: list[list[dict[str, Any]]]) -> None:
    assert "generated tokens" in shown(outputs, 3)["text/html"]
    assert "prompt tokens" in shown(outputs, 4)["text/html"]
    assert shown(outputs, 5)["image/svg+xml"].startswith("<svg")
    assert shown(outputs, 7)["text/plain"].startswith("flowchart TD")


def test_runs_are_shown_while_they_go_on_and_say_how_they_ended(outputs: list[list[dict[str, Any]]]) -> None:
    streamed = shown(outputs, 8)
    assert "About <b>snow</b>: " in streamed["text/plain"]
    assert "&lt;b&gt;snow" in streamed["text/html"]
    assert "1 calls" in streamed["text/plain"]
    assert "poem:" in shown(outputs, 9)["text/plain"]
    assert "failed: ValueError: of the user's own" in shown(outputs, 11)["text/plain"]


def test_kernel_has_no_trace_of_errors(outputs: list[list[dict[str, Any]]]) -> None:
    assert [o for cell in outputs for o in cell if o["output_type"] in ("error", "stream")] == []
