"""Settings of the process that make CPU inference fast: the allocator, waiting threads, the number of threads.

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


def apply() -> HostReport:
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
