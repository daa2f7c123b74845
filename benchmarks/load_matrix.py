"""Which architectures run here: each one of the installed transformers, as a tiny random model, loaded and compared.

`python -m benchmarks.load_matrix --write docs/models.md` makes the page; names as arguments limit it to these. A model that
loads must give transformers' greedy ids and prompt log-probabilities: alone, in one batch, warm, and past each length its
config names. Any other must be refused by name.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from sglang_dsl.errors import ModelLoadError as ModelError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.model.options import ModelOptions

VOCAB = 288
TOLERANCE = 5e-5  # of a log-probability
NEAR_TIE = 1e-3  # of the reference's two best logits: closer than this, rounding may pick either
NEW_TOKENS = 6
LIMIT_S = 60
MOST_PARAMETERS = 20_000_000
LENGTHS = (5, 23, 40)
OPTIONS = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 24)
GREEDY = SamplingSpec(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 24,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_head_dim": 24,
    "shared_expert_intermediate_size": 32, "decoder_layers": 2, "encoder_layers": 2, "d_model": 64, "n_embd": 64,
    "n_layer": 3, "n_head": 4, "n_positions": 256, "n_ctx": 256, "ffn_dim": 96, "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96, "decoder_attention_heads": 4, "encoder_attention_heads": 4, "n_heads": 4, "n_layers": 3,
    "max_seq_len": 256, "is_decoder": True, "sliding_window": 32, "mlp_hidden_size": 96, "num_layers": 4,
    "rotary_dim": 8,
}  # fmt: skip
"""Set wherever a config has a field of the name."""

OWN: dict[str, dict[str, Any]] = {
    "granitemoe_swa": {"initializer_range": 0.1},
    "gemma2": {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gpt_neox": {"rotary_pct": 0.5},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.1},
    "llama4_text": {"attention_chunk_size": 32, "floor_scale": 16, "intermediate_size_mlp": 96,
                    "moe_layers": [1, 3], "no_rope_layers": [1, 1, 1, 0]},
    "mistral": {"sliding_window": 32},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "phi3": {"pad_token_id": 0, "sliding_window": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "window_size": 32},
    "falcon": {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256,
             "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0}, "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
}  # fmt: skip

_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 8, "long_factor": [1.0 + 0.5 * i for i in range(8)],
}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3 + longrope": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32}),
    "llama + longrope": ("llama", {"rope_parameters": _LONGROPE}),
    "llama + linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama + dynamic": ("llama", {"max_position_embeddings": 32, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama + yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}}),
    "llama + llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
}  # fmt: skip
"""Settings that change what is computed, each on one architecture."""


@dataclass
class Outcome:
    """How one model fared. status: "equal", "refused", "wrong", "crashed", or "not built" (no tiny model of it was made)."""

    name: str
    status: str
    detail: str = ""
    largest: float = 0.0
    past: list[int] = field(default_factory=list)
    seconds: float = 0.0


def names() -> list[str]:
    """Every architecture with a causal language model, and the variants."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [*sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), *VARIANTS]


def tiny_model(name: str) -> Any:
    """A random model; the same each time."""
    torch.manual_seed(7)
    config = tiny_config(name)
    with torch.device("meta"):
        outline = transformers.AutoModelForCausalLM.from_config(config)
    size = sum(p.numel() for p in outline.parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"its smallest configuration found has {size:,} parameters")
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def tiny_config(name: str) -> Any:
    """Sizes wherever the config knows the field, in its text part too."""
    base, extra = VARIANTS.get(name, (name, {}))
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[base]
    values = _sizes(kind) | OWN.get(base, {}) | extra
    for part, sub in (getattr(kind, "sub_configs", None) or {}).items():
        if part in ("text_config", "decoder"):
            sub_kind = sub if sub is not transformers.AutoConfig else None
            if sub_kind is not None:
                values[part] = _sizes(sub_kind) | OWN.get(getattr(sub_kind, "model_type", ""), {})
    try:
        return kind(**values)
    except Exception:  # noqa: BLE001 - some derive their layer types and take none
        return kind(**{key: value for key, value in values.items() if key != "layer_types"})


def _sizes(kind: Any) -> dict[str, Any]:
    default = kind()
    derived = {key for key in SIZES if isinstance(getattr(kind, key, None), property)}
    known = {key: value for key, value in SIZES.items() if hasattr(default, key) and key not in derived}
    if getattr(default, "qk_rope_head_dim", None) is not None:
        known["head_dim"] = known["qk_rope_head_dim"]  # what is rotated, in latent attention
    if getattr(default, "sliding_window", None) is None:
        known.pop("sliding_window", None)
    types = None if isinstance(getattr(kind, "layer_types", None), property) else getattr(default, "layer_types", None)
    if types and not isinstance(types[0], int) and "num_hidden_layers" in known:
        wanted = known["num_hidden_layers"]
        distinct = list(dict.fromkeys(types))
        known["layer_types"] = (distinct * wanted)[:wanted]
    return known


def write_folder(model: Any, folder: Path) -> None:
    """As a Hugging Face folder; its tokenizer has one token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i + 3 for i, token in enumerate(alphabet)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}')


def thresholds(config: Any) -> list[int]:
    """Lengths at which a config says that something changes."""
    text = config.get_text_config()
    found: set[int] = set()
    for key in (
        "sliding_window",
        "attention_chunk_size",
        "window_size",
        "floor_scale",
        "original_max_position_embeddings",
    ):
        value = getattr(text, key, None)
        found.add(value if isinstance(value, int) and not isinstance(value, bool) else 0)
    rope = getattr(text, "rope_parameters", None) or {}
    for part in [rope, *[v for v in rope.values() if isinstance(v, dict)]]:
        found.add(int(part.get("original_max_position_embeddings") or 0))
        if part.get("rope_type") == "dynamic":
            found.add(text.max_position_embeddings)
    return sorted(x for x in found if 0 < x < 200)


def compare(name: str, options: ModelOptions = OPTIONS) -> Outcome:
    """Build, save, load and compare one."""
    began = time.perf_counter()
    try:
        with _at_most(LIMIT_S):
            outcome = _compare(name, options)
    except TimeoutError:
        outcome = Outcome(name, "not built", f"no tiny model of it is made within {LIMIT_S} s")
    outcome.seconds = time.perf_counter() - began
    return outcome


def _compare(name: str, options: ModelOptions) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _quiet():
                model = tiny_model(name)
                write_folder(model, Path(folder))
                reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
                with torch.inference_mode():
                    reference(input_ids=torch.arange(4).unsqueeze(0), use_cache=False)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001
            return Outcome(name, "not built", f"{type(error).__name__}: {error}"[:200])
        try:
            with _quiet():
                engine = open_engine(folder, options)
        except ModelError as error:
            return Outcome(name, "refused", str(error).splitlines()[0].replace(folder, "FOLDER"))
        except Exception as error:  # noqa: BLE001
            return Outcome(name, "crashed", f"{type(error).__name__}: {error}"[:200])
        with engine:
            return _against(name, engine, reference)


def prompts_for(config: Any) -> list[list[int]]:
    """Prompts of unequal length that begin alike, some just below and some past each threshold; the first ones recur last."""
    past = thresholds(config)
    lengths = sorted({*LENGTHS, *(t - 3 for t in past if t > 4), *(2 * t + 5 for t in past)})
    ids = torch.randint(3, 259, (max(lengths),), generator=torch.Generator().manual_seed(1)).tolist()
    return [ids[:length] for length in lengths]


def _against(name: str, engine: Any, reference: Any) -> Outcome:
    prompts = prompts_for(reference.config)
    outcome = Outcome(name, "equal", past=thresholds(reference.config))
    expected = [plain_greedy(reference, prompt) for prompt in prompts]
    scores = [plain_logprobs(reference, prompt) for prompt in prompts]

    def check(way: str, prompt: int, result: Any, logprobs: Sequence[Any] = ()) -> None:
        if isinstance(result, BaseException):
            raise _DifferentError(f"{way}, {len(prompts[prompt])} tokens: {result}")
        ids, gaps = expected[prompt]
        for at, (mine, wanted) in enumerate(zip(result.token_ids, ids, strict=True)):
            if mine != wanted:
                if gaps[at] < NEAR_TIE:
                    break
                raise _DifferentError(
                    f"{way}, {len(prompts[prompt])} tokens: token {at} differs by a margin of {gaps[at]:.2g}"
                )
        if logprobs:
            worst = max(abs(s.logprob - r) for s, r in zip(logprobs[1:], scores[prompt], strict=True))
            outcome.largest = max(outcome.largest, worst)
            if not worst <= TOLERANCE:
                raise _DifferentError(f"{way}, {len(prompts[prompt])} tokens: log-probabilities differ by {worst:.2g}")

    try:
        for i, prompt in enumerate(prompts):
            result = engine.generate(prompt, GREEDY, prompt_logprobs=0)
            check("alone", i, result, result.prompt_scores)
        engine.flush()
        for i, result in enumerate(engine.generate_batch(prompts, GREEDY)):
            check("in a batch", i, result)
        for i, prompt in enumerate(prompts):
            check("warm", i, engine.generate(prompt, GREEDY))
        for i, result in enumerate(engine.generate_batch(prompts, GREEDY, prompt_logprobs=0)):
            check("in a batch", i, result, result.prompt_scores)
    except _DifferentError as difference:
        outcome.status, outcome.detail = "wrong", str(difference)
    except Exception as error:  # noqa: BLE001
        outcome.status, outcome.detail = "crashed", f"{type(error).__name__}: {error}"[:200]
    return outcome


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """TimeoutError after so long, in the main thread of a POSIX process."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _DifferentError(Exception):
    pass


@torch.inference_mode()
def plain_greedy(model: Any, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens of the plain forward over the whole sequence each time, and by how much each won."""
    ids, gaps = list(prompt), []
    for _ in range(NEW_TOKENS):
        model(input_ids=torch.tensor([ids[:1]]), use_cache=False)  # dynamic scaling forgets longer sequences
        best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gaps


@torch.inference_mode()
def plain_logprobs(model: Any, prompt: Sequence[int]) -> list[float]:
    """Of every token but the first, by one plain forward."""
    model(input_ids=torch.tensor([list(prompt[:1])]), use_cache=False)  # dynamic scaling forgets longer sequences
    logits = model(input_ids=torch.tensor([list(prompt)]), use_cache=False).logits[0]
    table = logits.double().log_softmax(-1)
    return [float(table[i, token]) for i, token in enumerate(prompt[1:])]


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def page(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a page of the documentation."""
    counts = {status: sum(o.status == status for o in outcomes) for status in ("equal", "refused", "not built")}
    lines = [
        "# Models that run here",
        "",
        "<!-- made by: python -m benchmarks.load_matrix --write docs/models.md -->",
        "",
        f"Every architecture with a causal language model in transformers {transformers.__version__}, as a tiny random model in "
        "float32. *Equal*: the same greedy tokens, and prompt log-probabilities within 5e-5, as transformers' plain forward of "
        "each sequence: alone, in one batch of unequal lengths, warm, and past each length at which its configuration changes "
        "something (window, chunk, scaled queries, rotary factors). *Refused*: opening it raises a ModelLoadError that says "
        "why. *Not tried*: no tiny model of it was made.",
        "",
        f"{counts['equal']} equal, {counts['refused']} refused, {counts['not built']} not tried. Models whose rotary factors "
        "depend on the sequence's length (LongRoPE, dynamic scaling) are computed anew when a sequence crosses such a length; "
        "with dynamic scaling that is every token past the original length, which is slow.",
        "",
        "| architecture | result | largest difference | compared past | why not |",
        "|---|---|---|---|---|",
    ]
    for o in outcomes:
        worst = f"{o.largest:.0e}" if o.status == "equal" else ""
        past = ", ".join(map(str, o.past)) if o.status == "equal" else ""
        why = "" if o.status == "equal" else " ".join(o.detail.partition(": ")[2].split() or o.detail.split())
        shown = {"not built": "not tried"}.get(o.status, o.status)
        lines.append(f"| {o.name} | {shown} | {worst} | {past} | {_cell(why) if o.status == 'refused' else ''} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"relative difference [^,]+, allowed.*", "the self-check differs", text)
    return text.replace("|", "\\|")[:160]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", type=Path)
    chosen = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    outcomes = []
    for name in chosen.names or names():
        outcome = compare(name)
        print(
            f"{name:<28}{outcome.status:<10}{outcome.seconds:5.1f} s  {outcome.largest:.1e}  {outcome.past}  {outcome.detail}",
            flush=True,
        )
        outcomes.append(outcome)
    counts = {status: sum(o.status == status for o in outcomes) for status in dict.fromkeys(o.status for o in outcomes)}
    print(counts)
    if chosen.write:
        chosen.write.write_text(page(outcomes), encoding="utf-8")
    return 1 if counts.get("wrong") or counts.get("crashed") else 0


if __name__ == "__main__":
    sys.exit(main())
