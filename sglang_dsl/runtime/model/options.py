"""What can be chosen about how a model is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ...errors import SpecError

WeightType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
DecoderKind: TypeAlias = Literal["auto", "native", "transformers"]

DEFAULT_KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is run. The defaults serve; tests of exact equality want `dtype="float32", packed_linears=False`.

    dtype: "auto" is bfloat16 where the processor computes in it, else float32. device: "auto" is CUDA where there is one.
    page_size: tokens per page; None is 1 on the CPU, 16 on CUDA. kv_bytes: memory of the key/value pool; None is 1 GiB, but
    never more than half of what is free. packed_linears: weights re-laid out for the processor's matrix kernels.
    self_check: refuse the model at load if packed rows do not give what its plain forward gives. threads: None is
    OMP_NUM_THREADS if set, else the physical cores but one. batch_invariant: a sequence's logits are bitwise the same alone
    and in any batch, cold and cached, however its prompt is chunked; several times slower, and on one thread by default.
    context_tokens: the longest sequence; None is what the model says (with scaled rotary positions: factor times the original
    length). decoder: who computes a layer. "transformers" is the library's own model; "native" is this project's decoder, which
    plain Llama models have, and refuses others; "auto" is the native one where the self-check has found it to give what
    transformers gives, else transformers. A model that was opened natively before opens without importing transformers.
    """

    dtype: WeightType = "auto"
    device: str = "auto"
    page_size: int | None = None
    kv_bytes: int | None = None
    packed_linears: bool = True
    self_check: bool = True
    threads: int | None = None
    batch_invariant: bool = False
    context_tokens: int | None = None
    decoder: DecoderKind = "auto"

    def __post_init__(self) -> None:
        if self.dtype not in get_args(WeightType):
            raise SpecError(f"dtype={self.dtype!r} is unknown", hint=f"one of {', '.join(get_args(WeightType))}")
        if self.decoder not in get_args(DecoderKind):
            raise SpecError(f"decoder={self.decoder!r} is unknown", hint=f"one of {', '.join(get_args(DecoderKind))}")
        if self.decoder == "native" and not self.self_check:
            raise SpecError(
                "decoder='native' serves only what the self-check has passed, and self_check is False",
                hint="leave self_check on, or take decoder='transformers'",
            )
        for name in ("page_size", "kv_bytes", "threads", "context_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpecError(
                    f"{name}={value!r} is not a positive whole number", hint=f"leave {name} out for a default"
                )
