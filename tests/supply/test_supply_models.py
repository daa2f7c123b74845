"""From names and paths to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dsl.errors import ModelLoadError, ModelNotFoundError
from sglang_dsl.runtime.supply import CATALOGUE, cache_folder, list_models, locate
from sglang_dsl.runtime.supply.models import file_fingerprint


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_DSL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folder_of(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def test_locate_a_pulled_model_by_name(cache):
    entry = CATALOGUE["smollm2"]
    file = cache / "models" / "smollm2" / entry.file_name
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(entry.size_bytes)
    found = locate("smollm2")
    assert (found.kind, found.path, found.name, found.fingerprint) == ("gguf", file, "smollm2", entry.sha256)
    assert {listing.entry.name: listing.path for listing in list_models()} == {"smollm2": file, "gemma3-270m": None}


def test_locate_a_pulled_model_that_was_cut_short_since_is_as_not_pulled(cache):
    file = cache / "models" / "smollm2" / CATALOGUE["smollm2"].file_name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match="has not been downloaded"):
        locate("smollm2")


def test_locate_a_gguf_file(tmp_path):
    (tmp_path / "my model.gguf").write_bytes(b"GGUF")
    found = locate(tmp_path / "my model.gguf")
    assert (found.kind, found.name) == ("gguf", "my model")
    assert len(found.fingerprint) == 64


def test_locate_a_folder(tmp_path):
    folder = folder_of(tmp_path / "llama", config__json=b"{}", model__safetensors=b"w")
    found = locate(str(folder))
    assert (found.kind, found.path, found.name) == ("hf_folder", folder, "llama")


def test_locate_a_folder_without_safetensors_says_what_is_missing(tmp_path):
    folder = folder_of(tmp_path / "old", config__json=b"{}", pytorch_model__bin=b"w")
    with pytest.raises(ModelLoadError, match="no safetensors weights"):
        locate(folder)


@pytest.mark.parametrize("wrong", ["smolm2", "SmolLM2"])
def test_locate_a_misspelt_name_gives_near_misses(wrong):
    with pytest.raises(ModelNotFoundError, match="did you mean smollm2"):
        locate(wrong)


def test_locate_a_misspelt_file_gives_the_files_beside_it(tmp_path):
    (tmp_path / "qwen-0.5b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"did you mean .*qwen-0\.5b\.gguf"):
        locate(tmp_path / "qwen-05b.gguf")


def test_locate_something_far_off_lists_what_there_is():
    with pytest.raises(ModelNotFoundError, match="no model is called 'xyz'") as caught:
        locate("xyz")
    assert "gemma3-270m, smollm2" in caught.value.hint


def test_fingerprint_tells_contents_sizes_and_files_apart(tmp_path):
    base = {"config__json": b"{}", "model__safetensors": b"weights", "tokenizer__json": b"1"}
    variants = [
        base,
        {**base, "model__safetensors": b"weightz"},
        {**base, "config__json": b"{ }"},
        {**base, "tokenizer__json": b"2"},
        {**base, "chat_template__jinja": b""},
    ]
    found = [locate(folder_of(tmp_path / str(i), **files)).fingerprint for i, files in enumerate(variants)]
    assert len(set(found)) == len(variants)
    same = locate(folder_of(tmp_path / "same", **base))
    assert same.fingerprint == found[0]


def test_fingerprint_of_a_large_file_sees_its_ends_and_its_middle(tmp_path):
    size = 40 * 1024 * 1024
    path = tmp_path / "large.gguf"
    seen = set()
    for at in (None, 0, size // 2, size - 1):
        with path.open("wb") as file:
            file.truncate(size)
            if at is not None:
                file.seek(at - at % 65536 if at not in (0, size - 1) else at)
                file.write(b"x" * (1 if at in (0, size - 1) else 1 << 20))
        seen.add(file_fingerprint(path))
    assert len(seen) == 4


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SGLANG_DSL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sglang-dsl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sglang-dsl"
