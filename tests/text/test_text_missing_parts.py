"""What is said where an optional library is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from text_files import byte_level_metadata, write_gguf

from sglang_dsl.errors import MissingExtraError
from sglang_dsl.runtime.text.jinja_template import JinjaTemplate
from sglang_dsl.runtime.text.load import load_text
from sglang_dsl.runtime.text.output import compile_stop_regex


def test_loading_without_the_engine_extra_names_the_command(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sglang-dsl\[engine\]'"):
        load_text(path, "f")


def test_template_without_jinja_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sglang-dsl\[engine\]'"):
        JinjaTemplate("{{ messages }}")


def test_stop_regex_without_its_library_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(MissingExtraError, match="pip install regex"):
        compile_stop_regex("a+ never compiled before")


def test_loading_a_models_text_reaches_neither_torch_nor_transformers(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata())
    program = (
        "import sys; from pathlib import Path; from sglang_dsl.runtime.text.load import load_text; "
        "import sglang_dsl.runtime.supply; "
        f"load_text(Path({str(path)!r}), 'f').tokenizer.encode('hello'); "
        "print(sorted({'torch', 'transformers', 'numpy', 'xgrammar', 'gguf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
