"""Makes the helpers beside this file importable, and gives tests small models behind a canary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # for canary, tiny_engine


@pytest.fixture
def open_tiny() -> Iterator[Callable[..., Any]]:
    """Function (**options) -> TinyEngine: a random Llama behind the whole engine. See tiny_engine.open_tiny_engine."""
    torch = pytest.importorskip("torch")
    from tiny_engine import TinyEngine, open_tiny_engine

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    opened: list[TinyEngine] = []

    def open_one(**options: Any) -> TinyEngine:
        opened.append(open_tiny_engine(**options))
        return opened[-1]

    yield open_one
    for tiny in opened:
        tiny.engine.close()
    torch.set_num_threads(threads)
