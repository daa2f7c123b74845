"""From a path to a model that can compute steps: read, check, pack, reserve the pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import ModelLoadError
from . import check, linears, settings
from .adapter import PackedModel, StepModel, probe
from .gguf_file import GgufFile
from .invariant import TiledModel
from .options import DEFAULT_KV_BYTES, ModelOptions
from .pools import KvPool, LayerShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Ready to compute. check_difference: what the self-check measured (None: it was off)."""

    packed: StepModel
    pool: KvPool
    fingerprint: str
    context_tokens: int
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    check_difference: float | None

    @property
    def kv_layout(self) -> str:
        """Names dtype and layout of the pool: part of every cache namespace."""
        return f"{str(self.dtype).removeprefix('torch.')}/slots-heads-size"


def load_model(path: Path, options: ModelOptions, *, fingerprint: str) -> LoadedModel:
    """Load a `.gguf` file or a Hugging Face folder.

    Raises:
        ModelLoadError: damaged, unknown or unsupported; SelfCheckError: it would compute something else than it should.
    """
    settings.apply()
    torch.set_num_threads(options.threads or (1 if options.batch_invariant else settings.default_threads()))
    device = choose_device(options.device)
    dtype = choose_dtype(options, device)
    model = read_model(path, dtype)
    placed: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
    return serve(placed, options, fingerprint=fingerprint)


def read_model(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The transformers model itself, as it is used anywhere else; what this engine is compared with.

    Raises:
        ModelLoadError: damaged, unknown or unsupported.
    """
    return _read_folder(path, dtype) if path.is_dir() else _read_gguf(path, dtype)


def serve(model: PreTrainedModel, options: ModelOptions, *, fingerprint: str) -> LoadedModel:
    """Make a transformers model compute steps. It is changed (linears packed, attention bound) and must not be used again.

    Raises:
        ModelLoadError, SelfCheckError: as `load_model`.
    """
    device, dtype = model.device, model.dtype
    config = model.config.get_text_config()
    page_size = options.page_size or (1 if device.type == "cpu" else 16)
    model.eval()  # type: ignore[no-untyped-call]
    model.requires_grad_(False)
    shapes, measured = _checked(model, options, page_size)
    if options.packed_linears and linears.can_pack(dtype, device):
        linears.pack_linears(model)
    num_pages = _pages(shapes, options, page_size, dtype, device)
    pool = KvPool(shapes, num_pages, page_size, dtype=dtype, device=device)
    if options.batch_invariant:
        check.verify_invariance(TiledModel, model, shapes, page_size=page_size, dtype=dtype)
    return LoadedModel(
        packed=TiledModel(model, pool) if options.batch_invariant else PackedModel(model, pool),
        pool=pool,
        fingerprint=fingerprint,
        context_tokens=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        dtype=dtype,
        device=device,
        check_difference=measured,
    )


def _checked(
    model: PreTrainedModel, options: ModelOptions, page_size: int
) -> tuple[dict[int, LayerShape], float | None]:
    """Layer shapes, and what the self-check measured if it is on."""
    if not options.self_check:
        return probe(model), None
    with check.in_float32(model, free_bytes(model.device) // 2) as dtype:
        token_ids = check.check_tokens(model.config.get_text_config().vocab_size)
        expected = check.plain_logits(model, token_ids)
        shapes = probe(model)
        return shapes, check.verify(model, shapes, token_ids, expected, page_size=page_size, dtype=dtype)


def choose_device(name: str) -> torch.device:
    """The device of a setting. Raises ModelLoadError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError("device='cuda' was asked for and torch sees no CUDA device", hint="use device='cpu'")
    return device


def choose_dtype(options: ModelOptions, device: torch.device) -> torch.dtype:
    """The weight type of a setting on a device."""
    if options.dtype != "auto":
        return _DTYPES[options.dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if linears.computes_bfloat16() else torch.float32


def _read_gguf(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    file = GgufFile(path)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            file.config(), dtype=dtype
        )
    missing, unexpected = model.load_state_dict(file.state(dtype), strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise ModelLoadError(
            f"{path} does not fill the model: missing {sorted(set(missing) - tied)[:5]}, unknown {unexpected[:5]}",
            hint="download it again",
        )
    return model


def _read_folder(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path} holds no config.json", hint="give a Hugging Face model folder or a .gguf file")
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(f"{path} cannot be loaded: {error}") from error
    return model


def _pages(
    shapes: dict[int, LayerShape], options: ModelOptions, page_size: int, dtype: torch.dtype, device: torch.device
) -> int:
    per_page = page_size * sum(s.bytes_per_token(dtype) for s in shapes.values())
    budget = options.kv_bytes or min(DEFAULT_KV_BYTES, free_bytes(device) // 2)
    if budget < per_page:
        raise ModelLoadError(f"{budget} bytes hold no page of {per_page} bytes", hint="raise kv_bytes")
    return budget // per_page


def free_bytes(device: torch.device) -> int:
    """Memory that can still be used on a device; a guess of 2 GiB where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return 2 * DEFAULT_KV_BYTES
    available = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(available.split()[1]) * 1024 if available else 2 * DEFAULT_KV_BYTES
