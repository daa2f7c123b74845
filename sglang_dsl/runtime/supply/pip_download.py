"""Fetching wheels with the user's own pip, so that indexes, mirrors, proxies and certificates are as they set them."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...errors import DownloadError

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_SHOWN_LINES = 4
_TICK_S = 0.2


def download_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download one wheel into `folder` (empty) and return its path. All temporary files of pip lie in `folder` too.

    On KeyboardInterrupt pip is ended before this returns.

    Raises:
        DownloadError: pip is missing, or says why it failed.
    """
    lines = _run_pip(requirement, folder, on_bytes)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _failure(requirement, lines)
    return wheels[0]


def _run_pip(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> list[str]:
    process = subprocess.Popen(
        _command(requirement, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )
    lines: list[str] = []
    with process:
        try:
            for line in _lines_and_ticks(process):
                if line is None:
                    on_bytes(_bytes_below(folder))
                elif (match := _PROGRESS.match(line)) is not None:
                    on_bytes(int(match[1]))
                elif line.strip():
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _failure(requirement, lines)
    return lines


def _lines_and_ticks(process: subprocess.Popen[str]) -> Iterator[str | None]:
    """What pip prints; None now and then while it says nothing: only pip 24.1 and later print bytes as they come."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=_TICK_S)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def _bytes_below(folder: Path) -> int:
    """Size of what pip has written so far; files may vanish while they are counted."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _pip_prints_bytes() -> bool:
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return False
    return (major, minor) >= (24, 1)


def _command(requirement: str, folder: Path) -> list[str]:
    bar = "--progress-bar=raw" if _pip_prints_bytes() else "--progress-bar=off"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", bar]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]


def _failure(requirement: str, lines: list[str]) -> DownloadError:
    said = "\n    ".join(
        [line for line in lines if "ERROR" in line or "No module" in line][-_SHOWN_LINES:] or lines[-2:]
    )
    text = "\n".join(lines)
    return DownloadError(
        f"pip could not download {requirement}:\n    {said}", hint=_what_to_do(text), retryable="ERROR" in text
    )


def _what_to_do(output: str) -> str:
    if "No module named pip" in output:
        return f"{sys.executable} -m ensurepip"
    if "No space left on device" in output:
        return "free some space, or set SGLANG_DSL_CACHE to a folder on a larger disk"
    if "no such option" in output or "invalid choice" in output:
        return f"{sys.executable} -m pip install --upgrade pip"
    return "check the network and pip's index settings (`pip config list`), then run the same command again"
