"""One word per idea: no public class name stands twice, the glossary knows every file, and docstrings say something."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_dsl"
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SGLANGS_OWN_NAMES = PACKAGE / "sglang.py"  # `Engine` is SGLang's word there, as programs written for it spell it


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def stems() -> set[str]:
    files = {path.stem for path in modules() if not path.stem.startswith("__")}
    return files | {path.parent.name for path in modules() if path.stem == "__init__"}


def classes(path: Path) -> set[str]:
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name for node in found if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}


def test_no_public_class_name_stands_in_two_files():
    homes: dict[str, list[str]] = {}
    for path in modules():
        if path != SGLANGS_OWN_NAMES:
            for name in classes(path):
                homes.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_glossary_has_the_name_of_every_file():
    rooms = {"sglang_dsl", "frontend", "tracing", "ir", "runtime", "backends", "kernels"}
    rooms |= {"cache", "constrain", "engine", "interpret", "model", "sample", "schedule", "text"}
    words = set(re.findall(r"`(\w+)`", GLOSSARY))
    words |= {term.replace(" ", "_") for term in re.findall(r"^\* \*\*([\w ]+)\*\*:", GLOSSARY, re.MULTILINE)}
    assert stems() - rooms - words == set()


def test_glossary_names_only_files_and_classes_that_exist():
    known = stems().union(*map(classes, modules()))
    entries = re.findall(r"^\* `(\w+)`:", GLOSSARY, re.MULTILINE)
    plain = re.findall(r"`(\w+)`", GLOSSARY.split("## Plain terms of the field")[1])
    assert [word for word in entries + plain if word not in known] == []
    written_as_classes = set(re.findall(r"`([A-Z]\w+)`", GLOSSARY))
    assert sorted(written_as_classes - known) == []


def test_glossary_has_each_term_once_and_in_one_line():
    terms = re.findall(r"^\* (\*\*[^*]+\*\*|`\w+`):", GLOSSARY, re.MULTILINE)
    assert len(terms) == len(set(terms))
    assert len(terms) == sum(line.startswith("* ") for line in GLOSSARY.splitlines())


def test_no_docstring_only_points_elsewhere():
    pointing = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                if re.fullmatch(r"See (`[\w.]+`|the module)\.?", text):
                    pointing.append(f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', '')}")
    assert pointing == []
