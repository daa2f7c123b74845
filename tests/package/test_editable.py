"""`pip install -e .` lays down a path, which type checkers and editors follow, and no import hook, which they do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_editable_install_is_a_path_to_the_folder(tmp_path: Path) -> None:
    tree, wheels = tmp_path / "tree", tmp_path / "wheels"
    wheels.mkdir()
    shutil.copytree(ROOT / "sglang_dsl", tree / "sglang_dsl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(wheels)], cwd=tree, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as opened:
        at_the_top = [name for name in opened.namelist() if "dist-info" not in name]
        assert [Path(name).suffix for name in at_the_top] == [".pth"]
        assert opened.read(at_the_top[0]).decode().strip() == str(tree)
    assert (tree / "sglang_dsl/py.typed").exists()
