"""From a path to a model that can compute steps: read, check, pack, reserve the pool.

Packing lays the weights of linear layers out for oneDNN's kernels: 1.2 to 1.5 times faster on the CPU, same results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import DslError, ModelLoadError, SelfCheckError
from . import check
from .adapter import Decoder, KvPool, LayerShape, PackedModel, StepModel, TiledModel, TransformersDecoder, probe
from .llama import LlamaDecoder, LlamaShape, llama_shape
from .options import DEFAULT_KV_BYTES, ModelOptions, default_threads, prepare_process
from .positions import PackedPositions, context_tokens, refuse_unknown, thresholds
from .weights import KeptWeights, read_folder, shown, stored_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PackedLinear(nn.Module):
    """A frozen `nn.Linear`, packed. The original weight is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this processor has kernels for packed weights of this type."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and computes_bfloat16())


def computes_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices by itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(module: nn.Module, spared: frozenset[nn.Module] = frozenset()) -> int:
    """Replace every plain `nn.Linear` below `module` in place, except `spared`; how many there were."""
    packed = 0
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear and child not in spared:
            setattr(module, name, PackedLinear(child))
            packed += 1
        else:
            packed += pack_linears(child, spared)
    return packed


@contextmanager
def watched_linears(module: nn.Module) -> Iterator[set[nn.Module]]:
    """Inside, plain linears below `module` note when somebody else reads their weight or bias (a router that computes in its
    weight's type, a fused expert): these must keep them. They are in the set at the end.
    """
    plain = [child for child in module.modules() if type(child) is nn.Linear]
    read: set[nn.Module] = set()

    class WatchedLinear(nn.Linear):
        """A linear whose own forward goes around its attributes."""

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self._parameters["weight"], self._parameters["bias"])  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> Tensor | nn.Module:
            if name in ("weight", "bias"):
                read.add(self)
            return super().__getattr__(name)

    for child in plain:
        child.__class__ = WatchedLinear
    try:
        yield read
    finally:
        for child in plain:
            child.__class__ = nn.Linear


_SHOWN = 400  # characters of a library's error that are passed on
_log = logging.getLogger(__name__)
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
    """Load a `.gguf` file or a Hugging Face folder. keep: leave for the next process what need not be done again (`KeptWeights`).

    Raises:
        ModelLoadError: damaged, unknown or unsupported; SelfCheckError: it would compute something else than it should.
    """
    prepare_process()
    torch.set_num_threads(options.threads or (1 if options.batch_invariant else default_threads()))
    with named_errors(path):
        device = choose_device(options.device)
        dtype = choose_dtype(options, device)
        facts = f"{options} {device} {torch.get_num_threads() if options.batch_invariant else ''}"
        kept = KeptWeights(fingerprint, facts) if keep else None
        weights = KeptWeights(fingerprint, str(dtype)) if keep else None
        if kept is not None:
            known = _reopened(path, options, kept, weights, dtype=dtype, device=device, fingerprint=fingerprint)
            if known is not None:
                return known
        model = read_model(path, dtype, weights)
        placed: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
        return serve(placed, options, fingerprint=fingerprint, keep=kept, path=path)


def _reopened(
    path: Path,
    options: ModelOptions,
    keep: KeptWeights,
    weights: KeptWeights | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    fingerprint: str,
) -> LoadedModel | None:
    """The model in its native decoder, without transformers, if that has passed the check when it was opened in this way before
    and its weights are found again.
    """
    difference, shape = keep.checked(), LlamaShape.from_json(keep.decoder())
    if difference is None or shape is None or not options.self_check:
        return None
    sizes = shape.tensors()
    state = stored_tensors(path, sizes) if path.is_dir() else _gguf_state(path, dtype, weights)
    if state is None or {name: tuple(tensor.shape) for name, tensor in state.items()} != sizes:
        return None
    decoder = LlamaDecoder(shape, {name: tensor.to(device, dtype) for name, tensor in state.items()})
    if options.packed_linears and can_pack(dtype, device):
        pack_linears(decoder)
    return _with_pool(
        decoder,
        shape.pools(),
        PackedPositions((), shape.context_tokens),
        options,
        fingerprint=fingerprint,
        context_tokens=shape.context_tokens,
        vocab_size=shape.vocab_size,
        dtype=dtype,
        device=device,
        check_difference=difference,
    )


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


def read_model(path: Path, dtype: torch.dtype, keep: KeptWeights | None = None) -> PreTrainedModel:
    """The transformers model itself, as it is used anywhere else; what this engine is compared with.

    Raises:
        ModelLoadError: damaged, unknown or unsupported.
    """
    with named_errors(path):
        return read_folder(path, dtype) if path.is_dir() else _read_gguf(path, dtype, keep)


def serve(
    model: PreTrainedModel,
    options: ModelOptions,
    *,
    fingerprint: str,
    keep: KeptWeights | None = None,
    path: Path | None = None,
) -> LoadedModel:
    """Make a transformers model compute steps. It is changed (linears packed, attention bound) and must not be used again.

    keep: where a passed check is noted; path: where the next process finds the weights.

    Raises:
        ModelLoadError, SelfCheckError: as `load_model`.
    """
    device, dtype = model.device, model.dtype
    vocab_size = int(model.config.get_text_config().vocab_size)
    model.eval()  # type: ignore[no-untyped-call]
    model.requires_grad_(False)
    refuse_unknown(model.config, type(model).__name__)
    most_tokens = context_tokens(model, options.context_tokens)
    positions = PackedPositions(model.modules(), most_tokens)
    known = None
    if keep is not None and options.self_check and options.decoder != "native" and keep.decoder() is None:
        known = keep.checked()  # of the model itself
    if known is None and options.self_check:
        native = _native_shape(model, positions, options, most_tokens, path if keep is not None else None)
        made, spared, groups, measured = _checked(model, native, positions, options, most_tokens)
    else:
        made, spared = _probed(model, positions, options)
        groups, measured = [], known
    if options.batch_invariant and made.softcapped:
        raise ModelLoadError(
            f"{type(model).__name__} caps its attention scores softly, which has no batch-invariant path",
            hint="leave batch_invariant off",
        )
    make = _way(options)
    packed = options.packed_linears and can_pack(dtype, device) and _pack(made, spared)
    if groups and (packed or options.batch_invariant or dtype != torch.float32):
        check.verify_all(made, make, groups, dtype=dtype)
    if options.batch_invariant and known is None:
        check.verify_invariance(made, make, dtype=dtype)
    if keep is not None and known is None and measured is not None:
        keep.note_checked(measured, made.decoder.shape.to_json() if isinstance(made.decoder, LlamaDecoder) else None)
    return _with_pool(
        made.decoder,
        made.shapes,
        positions,
        options,
        fingerprint=fingerprint,
        context_tokens=most_tokens,
        vocab_size=vocab_size,
        dtype=dtype,
        device=device,
        check_difference=measured,
    )


def _with_pool(
    decoder: Decoder,
    shapes: dict[int, LayerShape],
    positions: PackedPositions,
    options: ModelOptions,
    *,
    fingerprint: str,
    context_tokens: int,
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
    check_difference: float | None,
) -> LoadedModel:
    page_size = _page_size(options, device)
    pool = KvPool(shapes, _pages(shapes, options, page_size, dtype, device), page_size, dtype=dtype, device=device)
    return LoadedModel(
        packed=_way(options)(decoder, pool),
        pool=pool,
        positions=positions,
        fingerprint=fingerprint,
        context_tokens=context_tokens,
        vocab_size=vocab_size,
        dtype=dtype,
        device=device,
        check_difference=check_difference,
    )


def _way(options: ModelOptions) -> check.Make:
    return TiledModel if options.batch_invariant else PackedModel


def _page_size(options: ModelOptions, device: torch.device) -> int:
    return options.page_size or (1 if device.type == "cpu" else 16)


def _native_shape(
    model: PreTrainedModel, positions: PackedPositions, options: ModelOptions, most_tokens: int, path: Path | None
) -> LlamaShape | None:
    """The shape of the native decoder if it may serve this model: a plain Llama, alike at every length, that will be checked.
    Where the check is noted for the next process (`path`), that process must find the same weights.

    Raises:
        ModelLoadError: it is asked for, and the model has none.
    """
    shape = None
    if options.decoder != "transformers":
        alike = not positions.borders and not thresholds(model, [], most_tokens)
        shape = llama_shape(model, most_tokens) if alike else None
        if shape is not None and path is not None and path.is_dir() and not _stored_as(path, model, shape):
            shape = None
    if shape is None and options.decoder == "native":
        raise ModelLoadError(
            f"{type(model).__name__} has no native decoder here",
            hint="plain Llama models in their usual files have one: leave decoder out, or use decoder='transformers'",
        )
    return shape


def _stored_as(path: Path, model: PreTrainedModel, shape: LlamaShape) -> bool:
    """Whether the tensors of a folder are, under the names of a Llama, what the library has made of them."""
    stored = stored_tensors(path, shape.tensors())
    return stored is not None and all(
        torch.equal(stored[name].to(parameter.device, parameter.dtype), parameter)
        for name, parameter in model.named_parameters()
    )


def _checked(
    model: PreTrainedModel,
    native: LlamaShape | None,
    positions: PackedPositions,
    options: ModelOptions,
    most_tokens: int,
) -> tuple[check.CheckModel, frozenset[nn.Module], list[check.CheckGroup], float | None]:
    """The decoder that passed the self-check, the linears in it that must not be packed, what it was compared with, and the
    difference. The native decoder comes first if there is one; if it does not pass, the model itself is checked.
    """
    past = thresholds(model, list(positions.borders[:1]), min(check.MOST_TOKENS, most_tokens))
    rows = check.check_rows(model.config.get_text_config().vocab_size, past, most_tokens)
    with check.in_float32(model, free_bytes(model.device) // 2) as dtype:
        groups = check.expected_groups(model, rows)
        if native is not None:
            decoder = LlamaDecoder(native, dict(model.named_parameters()))
            made = _check_model(model, decoder, native.pools(), positions, options)
            try:
                return made, frozenset(), groups, check.verify_all(made, PackedModel, groups, dtype=dtype)
            except SelfCheckError as error:
                if options.decoder == "native":
                    raise
                _log.warning("the native decoder is not used: %s", str(error).splitlines()[0])
        made, spared = _probed(model, positions, options)
        return made, spared, groups, check.verify_all(made, PackedModel, groups, dtype=dtype)


def _probed(
    model: PreTrainedModel, positions: PackedPositions, options: ModelOptions
) -> tuple[check.CheckModel, frozenset[nn.Module]]:
    with watched_linears(model) as read:
        shapes, softcapped = probe(model)
    made = _check_model(model, TransformersDecoder(model, positions), shapes, positions, options)
    return made._replace(softcapped=softcapped), frozenset(read)


def _check_model(
    model: PreTrainedModel,
    decoder: Decoder,
    shapes: dict[int, LayerShape],
    positions: PackedPositions,
    options: ModelOptions,
) -> check.CheckModel:
    vocab_size = int(model.config.get_text_config().vocab_size)
    return check.CheckModel(
        model, decoder, shapes, positions, _page_size(options, model.device), model.device, vocab_size
    )


def _pack(made: check.CheckModel, spared: frozenset[nn.Module]) -> int:
    """Pack the linears of what serves. A model that no longer serves gives up its weights first: there is room for one."""
    if not isinstance(made.decoder, LlamaDecoder):
        return pack_linears(made.model, spared)
    for module in made.model.modules():
        module._parameters.clear()
    return pack_linears(made.decoder)


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
    return torch.bfloat16 if computes_bfloat16() else torch.float32


def _read_gguf(path: Path, dtype: torch.dtype, keep: KeptWeights | None) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from .gguf import GgufFile

    file = GgufFile(path)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            file.config(), dtype=dtype
        )
    state = _gguf_state(path, dtype, keep)
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


def _gguf_state(path: Path, dtype: torch.dtype, keep: KeptWeights | None) -> dict[str, Tensor]:
    """The file's weights, as they were kept if they were."""

    def read() -> dict[str, Tensor]:
        from .gguf import GgufFile  # and with it the gguf package

        return GgufFile(path).state(dtype)

    return read() if keep is None else keep.state(read)


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
