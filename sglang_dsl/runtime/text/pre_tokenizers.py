"""How text is cut before merges apply, by the name a GGUF file gives it (`tokenizer.ggml.pre`).

Source: the patterns are those of the models' own tokenizer.json files (openai-community/gpt2, HuggingFaceTB/SmolLM2,
meta-llama/Meta-Llama-3, Qwen/Qwen2, Qwen/Qwen3.5, mistralai/Mistral-Nemo, deepseek-ai/DeepSeek-V3, openai/o200k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ModelLoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """patterns: cut out one after the other. whole_words: a piece that is a vocabulary entry is taken without merging.
    adds_bos: what applies where the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def build(self) -> Any:
        """The pre-tokenizer of the `tokenizers` library."""
        from tokenizers import Regex, pre_tokenizers

        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated", invert=False) for p in self.patterns]
        return pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)]
        )


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}"
)


def _words(digits: str, letters: str = r"\p{L}") -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_BREAKS}"


def _cased(digits: str, ending: str) -> str:
    return rf"{_UPPER}*{_LOWER}+{ending}|{_UPPER}+{_LOWER}*{ending}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BREAKS}"


_GPT2_WORDS = PreTokenizer(patterns=(_GPT2,))
_SINGLE_DIGITS = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer(patterns=(_words(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_QWEN2 = PreTokenizer(patterns=(_words(r"\p{N}"),), nfc=True)

PRE_TOKENIZERS = {
    "gpt-2": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": PreTokenizer(patterns=(_words(r"\p{N}", r"\p{L}\p{M}"),), nfc=True),
    "tekken": PreTokenizer(patterns=(_cased(r"\p{N}", ""),), whole_words=True, adds_bos=True),
    "gpt-4o": PreTokenizer(patterns=(_cased(r"\p{N}{1,3}", _CONTRACTIONS + "?"),)),
    "deepseek-v3": PreTokenizer(patterns=(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK)),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """By the name in the file.

    Raises:
        ModelLoadError: this name is not known; a guess would give wrong ids without any error.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise ModelLoadError(
            f"the file's pre-tokenizer {name!r} is not known here; known: {', '.join(sorted(PRE_TOKENIZERS))}",
            hint="use the model's Hugging Face folder, which holds its tokenizer.json",
        )
    return found
