"""The programs of `frontend.py` in SGLang's own frontend, on a stub backend; run by `frontend.py --sglang`.

Its threaded mode is its default. Modules that it imports and a program does not need (torch among them) are stubbed
before the import, so that its wheel and a few small packages are enough. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

CALLS_PER_PROGRAM = 200


def stub_modules() -> None:
    utils = types.ModuleType("sglang.srt.utils")
    utils.__path__ = []
    patches: Any = types.ModuleType("sglang.srt.utils.hf_transformers_patches")
    patches.apply_all = lambda: None
    display: Any = types.ModuleType("IPython.display")
    display.HTML = display.display = print
    for module in (utils, patches, types.ModuleType("IPython"), display):
        sys.modules[module.__name__] = module


stub_modules()
import sglang as sgl  # noqa: E402
from sglang.lang.backend.base_backend import BaseBackend  # noqa: E402
from sglang.lang.chat_template import get_chat_template  # noqa: E402


class StubBackend(BaseBackend):
    """Has every value at once."""

    def __init__(self) -> None:
        super().__init__()
        self.chat_template = get_chat_template("default")

    def get_chat_template(self) -> Any:
        return self.chat_template

    def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        return "out", {}

    def commit_lazy_operations(self, s: Any) -> None:
        pass

    def cache_prefix(self, prefix_str: str) -> None:
        pass


@sgl.function
def many_calls(s: Any, calls: int) -> str:
    for _ in range(calls):
        s += "Q: " + sgl.gen("a", max_tokens=8, stop="\n")
    return s["a"]


@sgl.function
def many_reads(s: Any, calls: int) -> str:
    for _ in range(calls):
        s += "Q: " + sgl.gen("a", max_tokens=8, stop="\n")
        last = s["a"]
    return last


@sgl.function
def one_call(s: Any) -> str:
    s += "Q: " + sgl.gen("a", max_tokens=8)
    return s["a"]


@sgl.function
def fork_of_eight(s: Any, rounds: int) -> list[str]:
    for _ in range(rounds):
        s += "text "
        branches = s.fork(8)
        for i, branch in enumerate(branches):
            branch += f"tip {i}: "
            branch += sgl.gen("tip", max_tokens=8)
        branches.join()
    return s["tip"]


@sgl.function
def wide(s: Any, seen: list[int]) -> None:
    before = threading.active_count()
    branches = s.fork(200)
    branches += sgl.gen("v", max_tokens=1)
    seen.append(threading.active_count() - before)
    branches.join()


def best(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    sgl.set_default_backend(StubBackend())
    seen: list[int] = []
    wide.run(seen=seen)
    figures = {
        "call_ms": 1e3 * best(lambda: many_calls.run(calls=CALLS_PER_PROGRAM).sync()) / CALLS_PER_PROGRAM,
        "call_and_read_ms": 1e3 * best(lambda: many_reads.run(calls=CALLS_PER_PROGRAM).sync()) / CALLS_PER_PROGRAM,
        "fork8_join_ms": 1e3 * best(lambda: fork_of_eight.run(rounds=20).sync()) / 20,
        "programs_per_s": 50 / best(lambda: [one_call.run().sync() for _ in range(50)]),
        "threads_of_fork_200": float(seen[0]),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
