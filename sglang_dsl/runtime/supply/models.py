"""From a name or a path to a model's files."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import ModelLoadError, ModelNotFoundError
from .catalogue import CATALOGUE, CatalogueEntry
from .fingerprint import file_fingerprint, folder_fingerprint
from .folder import model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model lies. `path`: the GGUF file, or the Hugging Face folder. `name`: how to show it."""

    kind: Literal["gguf", "hf_folder"]
    path: Path
    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """A catalogue entry and where it lies on this machine, if it was pulled."""

    entry: CatalogueEntry
    path: Path | None


def list_models() -> list[ModelListing]:
    """The catalogue, in order of names."""
    return [ModelListing(entry=entry, path=pulled_file(entry)) for _, entry in sorted(CATALOGUE.items())]


def pulled_file(entry: CatalogueEntry) -> Path | None:
    """The model's file if it was pulled. It was checked then; what has another size now counts as not pulled."""
    path = model_folder(entry.name) / entry.file_name
    return path if path.is_file() and path.stat().st_size == entry.size_bytes else None


def locate(name_or_path: str | os.PathLike[str]) -> ModelFiles:
    """The files of a catalogue model (its name goes before a path), a `.gguf` file, or a Hugging Face folder with
    safetensors.

    Raises:
        ModelNotFoundError: nothing has this name, or the model was not pulled yet.
        ModelLoadError: the folder is not one that can be used.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if name in CATALOGUE:
        return _catalogue_files(CATALOGUE[name])
    if path.is_dir():
        return _folder_files(path)
    if path.is_file():
        parts = gguf_parts(path)
        return ModelFiles(kind="gguf", path=parts[0], name=path.stem, fingerprint=file_fingerprint(*parts))
    raise _not_found(name, path)


def gguf_parts(path: Path) -> list[Path]:
    """All files of the GGUF model that `path` is one file of, the first one first: `NAME-00001-of-00003.gguf` and so on.

    Raises:
        ModelLoadError: some of them are not there.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelLoadError(
            f"{path} is one of {count} files of a model; beside it are missing: {', '.join(missing[:4])}",
            hint="put all files of the model into one folder and open any of them",
        )
    return parts


_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def _catalogue_files(entry: CatalogueEntry) -> ModelFiles:
    path = pulled_file(entry)
    if path is None:
        raise ModelNotFoundError(
            f"{entry.name} has not been downloaded yet ({entry.download_bytes / 1e6:.0f} MB, {entry.licence})",
            hint=f"sglang-dsl models pull {entry.name}",
        )
    return ModelFiles(kind="gguf", path=path, name=entry.name, fingerprint=entry.sha256)


def _folder_files(folder: Path) -> ModelFiles:
    missing = [what for what, pattern in _NEEDED.items() if not any(folder.glob(pattern))]
    if missing:
        raise ModelLoadError(
            f"the folder {folder} has no {' and no '.join(missing)}",
            hint="give the folder of a Hugging Face model with safetensors weights, or a .gguf file",
        )
    return ModelFiles(kind="hf_folder", path=folder, name=folder.resolve().name, fingerprint=folder_fingerprint(folder))


_NEEDED = {"config.json": "config.json", "safetensors weights": "*.safetensors"}


def _not_found(name: str, path: Path) -> ModelNotFoundError:
    beside = [str(path.with_name(p.name)) for p in path.parent.glob("*.gguf")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(name, [*CATALOGUE, *beside], n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return ModelNotFoundError(
        f"no model is called {name!r}, and there is no such file or folder{meant}",
        hint=f"one of {', '.join(sorted(CATALOGUE))} (`sglang-dsl models list`), a .gguf file, or a Hugging Face folder",
    )
