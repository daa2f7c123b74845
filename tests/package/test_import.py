"""What `import sglang_dsl` may cost, and what it must not load."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = ("torch", "transformers", "xgrammar", "triton", "networkx", "pydantic", "lark", "tokenizers", "numpy")


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_of_the_package_loads_nothing_heavy() -> None:
    loaded = run_python(f"import sys, sglang_dsl; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_tracing_and_the_mock_need_no_torch() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "xgrammar", "tokenizers", "gguf"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
from sglang_dsl import RunOptions, assistant, gen, program, user
@program
def ask(s):
    s += user("Name a metal.")
    s += assistant(gen("metal"))
    return s["metal"]
from sglang_dsl.testing import mock, pieces
print(len(ask.trace()), ask.run(options=RunOptions(backend=mock([pieces("ir", "on")]))).value)
"""
    nodes, value = run_python(code).split()
    assert int(nodes) >= 6
    assert value == "iron"


def test_import_takes_under_300_ms_over_a_bare_interpreter() -> None:
    """Of the processor's time: what else the machine does meanwhile is not counted."""

    def spent() -> float:
        times = os.times()
        return times.children_user + times.children_system

    def best_of_5(code: str) -> float:
        times = []
        for _ in range(5):
            began = spent()
            run_python(code)
            times.append(spent() - began)
        return min(times)

    assert best_of_5("import sglang_dsl") - best_of_5("pass") < 0.3
