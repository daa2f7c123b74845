"""What one process leaves for the next: never wrong, never needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

from sglang_dsl.errors import EngineClosedError
from sglang_dsl.runtime.backends.local import LazyConstraintCompiler
from sglang_dsl.runtime.model import weights as module
from sglang_dsl.runtime.model.weights import KeptWeights

STATE = {"a": torch.arange(12.0).reshape(3, 4).bfloat16(), "b": torch.ones(3)}


def never() -> dict[str, torch.Tensor]:
    raise AssertionError("made again")


def same(state: dict[str, torch.Tensor]) -> bool:
    return state.keys() == STATE.keys() and all(torch.equal(state[name], STATE[name]) for name in STATE)


def test_weights_are_made_once_and_per_model_and_options(tmp_path: Path) -> None:
    assert same(KeptWeights("model", "facts", tmp_path).state(lambda: dict(STATE)))
    assert same(KeptWeights("model", "facts", tmp_path).state(never))
    for other in (KeptWeights("model", "others", tmp_path), KeptWeights("other", "facts", tmp_path)):
        with pytest.raises(AssertionError, match="made again"):
            other.state(never)
    assert len(list(tmp_path.iterdir())) == 1  # nothing unfinished is left


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: data[:-1] + b"\x7f", lambda data: b""])
def test_damaged_weights_are_made_again(change: object, tmp_path: Path) -> None:
    KeptWeights("model", "facts", tmp_path).state(lambda: dict(STATE))
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    assert same(KeptWeights("model", "facts", tmp_path).state(lambda: dict(STATE)))
    assert same(KeptWeights("model", "facts", tmp_path).state(never))


def test_the_oldest_weights_go_and_what_is_too_big_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 600)
    for i in range(6):
        KeptWeights(f"model {i}", "", tmp_path).state(lambda: dict(STATE))
        for file in tmp_path.glob("*.safetensors"):
            os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns - 10**9))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 900
    assert same(KeptWeights("model 5", "", tmp_path).state(never))
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    KeptWeights("big", "", tmp_path).state(lambda: dict(STATE))
    with pytest.raises(AssertionError):
        KeptWeights("big", "", tmp_path).state(never)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    kept = KeptWeights("model", "facts", file)
    assert same(kept.state(lambda: dict(STATE)))
    kept.note_checked(0.5)
    assert kept.checked() is None


def test_a_check_is_remembered_for_the_same_model_and_options_only(tmp_path: Path) -> None:
    kept = KeptWeights("model", "facts", tmp_path)
    assert kept.checked() is None
    kept.note_checked(1e-6)
    assert KeptWeights("model", "facts", tmp_path).checked() == 1e-6
    assert KeptWeights("model", "others", tmp_path).checked() is None
    for file in tmp_path.glob("*.json"):
        file.write_text("{")
    assert kept.checked() is None


def test_a_compiler_made_at_first_use_is_made_once_and_closed_once() -> None:
    made: list[str] = []

    class Compiler:
        def compile(self, spec: object) -> object:
            return spec

        def close(self) -> None:
            made.append("closed")

    def make() -> Compiler:
        made.append("made")
        return Compiler()

    unused = LazyConstraintCompiler(make)  # type: ignore[arg-type]
    unused.close()
    assert made == []
    with pytest.raises(EngineClosedError):
        unused.compile(None)  # type: ignore[arg-type]
    used = LazyConstraintCompiler(make)  # type: ignore[arg-type]
    used.compile(None)  # type: ignore[arg-type]
    used.compile(None)  # type: ignore[arg-type]
    used.close()
    assert made == ["made", "closed"]


def test_weights_without_a_checksum_are_made_again_and_a_full_disk_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    state = {"a": torch.ones(3)}
    keep = KeptWeights("m", "f", tmp_path)
    keep.state(lambda: state)
    (file,) = tmp_path.glob("*.safetensors")
    safetensors.torch.save_file({"a": torch.zeros(3)}, file)
    assert keep.state(lambda: state)["a"].tolist() == [1, 1, 1]

    def full(*_: object, **__: object) -> None:
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    assert KeptWeights("n", "f", tmp_path).state(lambda: state) is state
