"""From a path to a model that can compute steps: read, check, pack, reserve the pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...errors import DslError, ModelLoadError
from . import check, linears, settings
from .adapter import PackedModel, StepModel, probe
from .context import context_tokens, refuse_unknown, thresholds
from .folder import read_folder, shown
from .gguf_file import GgufFile
from .invariant import TiledModel
from .keep import Keep
from .options import DEFAULT_KV_BYTES, ModelOptions
from .pools import KvPool, LayerShape
from .rotary import PackedPositions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHOWN = 400  # characters of a library's error that are passed on
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Ready to compute. check_difference: what the self-check measured (None: it was off)."""

    packed: StepModel
    pool: KvPool
    positions: PackedPositions
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


def load_model(path: Path, options: ModelOptions, *, fingerprint: str, keep: bool = False) -> LoadedModel:
    """Load a `.gguf` file or a Hugging Face folder. keep: leave for the next process what need not be done again (`Keep`).

    Raises:
        ModelLoadError: damaged, unknown or unsupported; SelfCheckError: it would compute something else than it should.
    """
    settings.apply()
    torch.set_num_threads(options.threads or (1 if options.batch_invariant else settings.default_threads()))
    with named_errors(path):
        device = choose_device(options.device)
        dtype = choose_dtype(options, device)
        facts = f"{options} {device} {torch.get_num_threads() if options.batch_invariant else ''}"
        kept = Keep(fingerprint, facts) if keep else None
        weights = Keep(fingerprint, str(dtype)) if keep else None
        model = read_model(path, dtype, weights)
        placed: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
        return serve(placed, options, fingerprint=fingerprint, keep=kept)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is a ModelLoadError that names the model: files hold anything, and libraries raise anything.

    Raises:
        ModelLoadError: from any Exception that is none of this project's own.
    """
    try:
        yield
    except DslError:
        raise
    except MemoryError as error:
        raise ModelLoadError(f"{path} does not fit into memory: {error}", hint="use a smaller model") from error
    except Exception as error:
        said = " ".join(str(error).split())
        shown = said if len(said) <= _SHOWN else said[:_SHOWN] + " ..."
        raise ModelLoadError(
            f"{path} cannot be loaded: {type(error).__name__}: {shown}",
            hint="correct what is named in its config.json, or download the model again",
        ) from error


def read_model(path: Path, dtype: torch.dtype, keep: Keep | None = None) -> PreTrainedModel:
    """The transformers model itself, as it is used anywhere else; what this engine is compared with.

    Raises:
        ModelLoadError: damaged, unknown or unsupported.
    """
    with named_errors(path):
        return read_folder(path, dtype) if path.is_dir() else _read_gguf(path, dtype, keep)


def serve(model: PreTrainedModel, options: ModelOptions, *, fingerprint: str, keep: Keep | None = None) -> LoadedModel:
    """Make a transformers model compute steps. It is changed (linears packed, attention bound) and must not be used again.

    Raises:
        ModelLoadError, SelfCheckError: as `load_model`.
    """
    device, dtype = model.device, model.dtype
    config = model.config.get_text_config()
    page_size = options.page_size or (1 if device.type == "cpu" else 16)
    model.eval()  # type: ignore[no-untyped-call]
    model.requires_grad_(False)
    refuse_unknown(model.config, type(model).__name__)
    most_tokens = context_tokens(model, options.context_tokens)
    positions = PackedPositions(model, most_tokens)
    known = keep.checked() if keep is not None and options.self_check else None
    if known is None:
        made, spared, groups, measured = _checked(model, positions, options, page_size, most_tokens)
    else:
        made, spared = _probed(model, positions, page_size)
        groups, measured = [], known
    if options.batch_invariant and made.softcapped:
        raise ModelLoadError(
            f"{type(model).__name__} caps its attention scores softly, which has no batch-invariant path",
            hint="leave batch_invariant off",
        )
    make = TiledModel if options.batch_invariant else PackedModel
    packed = options.packed_linears and linears.can_pack(dtype, device) and linears.pack_linears(model, spared)
    if groups and (packed or options.batch_invariant or dtype != torch.float32):
        check.verify_all(made, make, groups, dtype=dtype)
    num_pages = _pages(made.shapes, options, page_size, dtype, device)
    pool = KvPool(made.shapes, num_pages, page_size, dtype=dtype, device=device)
    if options.batch_invariant and known is None:
        check.verify_invariance(made, make, dtype=dtype)
    if keep is not None and known is None and measured is not None:
        keep.note_checked(measured)
    return LoadedModel(
        packed=make(model, pool, positions),
        pool=pool,
        positions=positions,
        fingerprint=fingerprint,
        context_tokens=most_tokens,
        vocab_size=config.vocab_size,
        dtype=dtype,
        device=device,
        check_difference=measured,
    )


def _checked(
    model: PreTrainedModel, positions: PackedPositions, options: ModelOptions, page_size: int, most_tokens: int
) -> tuple[check.CheckModel, frozenset[nn.Module], list[check.CheckGroup], float | None]:
    """The model with its layers' shapes, the linears that must not be packed, and what the self-check found if it is on."""
    if not options.self_check:
        made, spared = _probed(model, positions, page_size)
        return made, spared, [], None
    past = thresholds(model, list(positions.borders[:1]), min(check.MOST_TOKENS, most_tokens))
    rows = check.check_rows(model.config.get_text_config().vocab_size, past, most_tokens)
    with check.in_float32(model, free_bytes(model.device) // 2) as dtype:
        groups = check.expected_groups(model, rows)
        made, spared = _probed(model, positions, page_size)
        return made, spared, groups, check.verify_all(made, PackedModel, groups, dtype=dtype)


def _probed(
    model: PreTrainedModel, positions: PackedPositions, page_size: int
) -> tuple[check.CheckModel, frozenset[nn.Module]]:
    with linears.watched_linears(model) as read:
        shapes, softcapped = probe(model)
    return check.CheckModel(model, shapes, positions, page_size, softcapped), frozenset(read)


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


def _read_gguf(path: Path, dtype: torch.dtype, keep: Keep | None) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    file = GgufFile(path)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            file.config(), dtype=dtype
        )
    state = file.state(dtype) if keep is None else keep.state(lambda: file.state(dtype))
    wrong = [name for name, p in model.named_parameters() if name in state and state[name].shape != p.shape]
    if wrong:
        raise ModelLoadError(
            f"{path} holds tensors of other shapes than it says: {shown(wrong)}", hint="download it again"
        )
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise ModelLoadError(
            f"{path} does not fill the model: missing {sorted(set(missing) - tied)[:5]}, unknown {unexpected[:5]}",
            hint="download it again",
        )
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
