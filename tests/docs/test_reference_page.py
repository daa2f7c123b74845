"""docs/reference.md is what the docstrings say, and has every public name."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import sglang_dsl
import sglang_dsl.testing

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_page_is_up_to_date() -> None:
    made = generator().reference()
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == made, "run: python docs/generate_reference.py"


def test_reference_page_has_every_public_name() -> None:
    found = generator()
    assert found.documented("sglang_dsl") == set(sglang_dsl.__all__)
    names = {n for n, v in vars(sglang_dsl.testing).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert found.documented("sglang_dsl.testing") == names


def test_reference_page_has_every_command() -> None:
    found = generator()
    listed = found._help("").partition("Commands:")[2].strip("\n").partition("\n\n")[0]
    commands = {line.split()[0] for line in listed.splitlines() if re.match(r"  \w", line)}
    assert {command.split()[0] for command in found.COMMANDS} == commands


def test_every_public_thing_has_a_docstring() -> None:
    for name in sglang_dsl.__all__:
        assert inspect.getdoc(getattr(sglang_dsl, name)), name
