"""The pytest plugin: `mock_backend`, `golden` and `cassette_file`, and the options that go with them.

Pytest finds it by the package's entry point. A failing test is one failure: what its fixtures would find besides (replies that were
not used because it failed) is not reported, and of the frames only the user's own are shown (all with `--full-trace`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import DslError, SpecError

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
    parser.addini(
        "sglang_dsl_frames", "show sglang_dsl's own frames in tracebacks of its errors", "bool", default=False
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Note whether the test itself has failed, and take the library's frames out of what its errors show."""
    if call.excinfo is not None and not item.config.getini("sglang_dsl_frames") and not item.config.option.fulltrace:
        _show_own_frames(call.excinfo.value, str(item.config.rootpath))
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)
    report = yield
    if call.when == "call" and report.failed:
        item.stash[_FAILED] = True
    return report


_FAILED = pytest.StashKey[bool]()
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def _show_own_frames(error: BaseException | None, root: str) -> None:
    """Take the library's frames out of the tracebacks of an error of its own and of what that came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, DslError):
            error.__traceback__ = _own_frames(error.__traceback__, root)
        error = error.__cause__ or error.__context__


def _own_frames(traceback: TracebackType | None, root: str) -> TracebackType | None:
    """The frames up to the first one of the library, and behind it those of files below `root`."""
    kept: list[TracebackType] = []
    inside = False
    at = traceback
    while at is not None:
        path = at.tb_frame.f_code.co_filename
        library = path.startswith(_PACKAGE)
        inside = inside or library
        if not library and (not inside or path.startswith(root)):
            kept.append(at)
        at = at.tb_next
    for each, following in pairwise([*kept, None]):
        if each is not None:
            each.tb_next = following
    return kept[0] if kept else traceback


def _verify(request: pytest.FixtureRequest, verify: Callable[[], None]) -> None:
    """Let the test fail, without frames, where something prepared for it was not used; not where it has failed anyway."""
    if request.node.stash.get(_FAILED, False):
        return
    try:
        verify()
    except DslError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def mock_backend(request: pytest.FixtureRequest) -> Iterator[Callable[..., MockExecutor]]:
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
        _verify(request, backend.verify)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a graph with the one kept beside the test, in `golden/<test's name>.graph`."""
    from .golden import SUFFIX, check_golden

    folder = request.path.parent / "golden"
    update = bool(request.config.getoption("--update-golden"))

    def check(graph: Graph, name: str | None = None) -> None:
        check_golden(graph, folder / f"{_checked(name) or _file_name(request)}{SUFFIX}", update=update)

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
        file: Path = request.path.parent / "cassettes" / f"{_checked(name) or _file_name(request)}.jsonl"
        options.setdefault("mode", request.config.getoption("--cassettes"))
        opened.append(cassette(file, **options))
        return opened[-1]

    yield make
    for executor in opened:
        executor.close()
        if isinstance(executor, ReplayExecutor):
            _verify(request, executor.verify)


def _checked(name: str | None) -> str:
    """The name of a file beside the test. Raises SpecError for what is none."""
    if name is None:
        return ""
    if not isinstance(name, str) or not name.strip() or re.search(r'[\\/:*?"<>|\x00]', name) or name in (".", ".."):
        raise SpecError(f"{name!r} is no file name", hint="a word without slashes; the file stands beside the test")
    return name


def _file_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
