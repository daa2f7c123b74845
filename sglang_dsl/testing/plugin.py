"""The pytest plugin: `mock_backend`, `golden` and `cassette_file`, and the options that go with them.

Pytest finds it by the package's entry point.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..runtime.backends.mock import MockExecutor
    from .cassettes import RecordingExecutor, ReplayExecutor


def pytest_addoption(parser: pytest.Parser) -> None:
    """The command line's options."""
    group = parser.getgroup("sglang-dsl", "prompt programs")
    group.addoption("--update-golden", action="store_true", help="write golden graphs instead of comparing them")
    group.addoption(
        "--cassettes", choices=("auto", "record", "replay"), default=None, help="record cassettes anew, or only replay"
    )


@pytest.fixture
def mock_backend() -> Iterator[Callable[..., MockExecutor]]:
    """`mock(...)`, closed after the test; scripted replies that were not used then fail it.

    def test_triage(mock_backend):
        backend = mock_backend({"answer": "yes"})
    """
    from ..runtime.backends.mock import mock

    opened: list[MockExecutor] = []

    def make(*args: Any, **options: Any) -> MockExecutor:
        opened.append(mock(*args, **options))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()
    for backend in opened:
        backend.verify()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a graph with the one kept beside the test, in `golden/<test's name>.graph`."""
    from .golden import SUFFIX, check_golden

    folder = request.path.parent / "golden"
    update = bool(request.config.getoption("--update-golden"))

    def check(graph: Graph, name: str | None = None) -> None:
        check_golden(graph, folder / f"{name or _file_name(request)}{SUFFIX}", update=update)

    return check


@pytest.fixture
def cassette_file(request: pytest.FixtureRequest) -> Iterator[Callable[..., RecordingExecutor | ReplayExecutor]]:
    """`cassette(...)` on `cassettes/<test's name>.jsonl` beside the test, saved or checked after it.

    def test_triage(cassette_file):
        backend = cassette_file(backend="local")
    """
    from .cassettes import ReplayExecutor, cassette

    opened: list[RecordingExecutor | ReplayExecutor] = []

    def make(name: str | None = None, **options: Any) -> RecordingExecutor | ReplayExecutor:
        file: Path = request.path.parent / "cassettes" / f"{name or _file_name(request)}.jsonl"
        options.setdefault("mode", request.config.getoption("--cassettes"))
        opened.append(cassette(file, **options))
        return opened[-1]

    yield make
    for executor in opened:
        executor.close()
        if isinstance(executor, ReplayExecutor):
            executor.verify()


def _file_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
