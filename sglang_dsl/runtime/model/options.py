"""What can be chosen about how a model is run, and the settings of the process that make CPU inference fast: the allocator, waiting
threads, the number of threads.

Importing this module changes nothing and loads no torch. Measured effects: glibc gives big activations back to the system
after every operation unless told not to (a 6 MB gather took 11 times as long); OpenMP threads that spin while they wait made
a step on a busy machine five times slower.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
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


_M_TRIM_THRESHOLD = -1  # malloc.h of glibc
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What stands in this process. `notes`: what could not be applied, and why."""

    physical_cores: int
    threads: int
    allocator_keeps_memory: bool
    wait_policy: str
    notes: tuple[str, ...] = ()


def prepare_process() -> HostReport:
    """Apply what has to stand before torch is imported. Loads no torch, may be called again, overrules no variable that is set."""
    notes: list[str] = []
    return HostReport(
        physical_cores=physical_cores(),
        threads=default_threads(),
        wait_policy=_passive_waiting(notes),
        allocator_keeps_memory=_keep_memory(notes),
        notes=tuple(notes),
    )


def default_threads() -> int:
    """OMP_NUM_THREADS if it is set, else the physical cores but one (at least one): the engine's loop needs a core too."""
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(value) if value.isdigit() and int(value) > 0 else max(1, physical_cores() - 1)


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads of one core counted once."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return len({_siblings(cpu) for cpu in usable})


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _passive_waiting(notes: list[str]) -> str:
    if "OMP_WAIT_POLICY" not in os.environ:
        if "torch" in sys.modules:
            notes.append("OMP_WAIT_POLICY=PASSIVE came too late: torch was imported first")
            return "default"
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # libgomp reads it once, when torch loads it
    return os.environ["OMP_WAIT_POLICY"]


def _keep_memory(notes: list[str]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        notes.append("the allocator is not glibc's: left as it is")
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = [mallopt(option, _KEEP_BYTES) == 1 for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD)]
    return all(done)
