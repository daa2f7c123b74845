"""docs/errors.md lists every error, and its examples print what it says. UPDATE_GOLDEN=1 writes the messages anew."""

from __future__ import annotations

import linecache
import os
import re
from pathlib import Path

import pytest

import sglang_dsl
from sglang_dsl import errors, testing
from sglang_dsl.ir.specs import RunOptions

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
ENTRY = re.compile(r"## (E\d+) (\w+)\n\n.*?(?=\n## |\Z)", re.DOTALL)
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)\n```\n\n```text\n(?P<message>.*?)```", re.DOTALL)
FILE = "example.py"


def entries() -> list[tuple[str, str, str]]:
    return [(m[1], m[2], m[0]) for m in ENTRY.finditer(PAGE.read_text(encoding="utf-8"))]


def all_errors() -> dict[str, str]:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.DslError)]
    return {k.code: k.__name__ for k in kinds if k is not errors.DslError}


def message_of(code: str) -> tuple[str, str]:
    """(class name, printed message) of what an example raises."""
    linecache.cache[FILE] = (len(code), None, [f"{line}\n" for line in code.split("\n")], FILE)
    names = {**{n: getattr(sglang_dsl, n) for n in sglang_dsl.__all__}, **vars(testing), "__name__": "example"}
    with sglang_dsl.use(RunOptions(backend="mock", seed=0)), pytest.raises(errors.DslError) as caught:
        exec(compile(code, FILE, "exec"), names)
    return type(caught.value).__name__, str(caught.value)


def test_every_error_has_an_entry_and_every_entry_an_error() -> None:
    assert {code: name for code, name, _ in entries()} == all_errors()


def test_codes_are_unique() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.DslError)]
    codes = [k.code for k in kinds]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(("code", "name", "entry"), [e for e in entries() if "```python" in e[2]], ids=lambda e: e[:4])
def test_example_raises_the_error_with_the_printed_message(code: str, name: str, entry: str) -> None:
    example = EXAMPLE.search(entry)
    assert example
    raised, message = message_of(example["code"])
    assert raised == name
    assert message.startswith(f"[{code}] ")
    if os.environ.get("UPDATE_GOLDEN"):
        renewed = entry[: example.start("message")] + message + "\n" + entry[example.end("message") :]
        PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(entry, renewed), encoding="utf-8")
    else:
        assert message == example["message"].rstrip("\n")
