"""What stands in the way of running models here, in words."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ...model import settings
from ...supply import cache_folder, list_models
from .opening import missing_parts

_PARTS = ("torch", "transformers", "tokenizers", "xgrammar", "gguf", "triton")


def report() -> str:
    """Installed parts, settings applied to this process, models at hand, and what is missing for a GPU."""
    missing = missing_parts()
    lines = [f"python        {platform.python_version()} on {platform.machine()}"]
    lines += [f"{name:<14}{_version(name)}" for name in _PARTS]
    lines += _host_lines()
    lines += _model_lines()
    if missing:
        lines.append(f"missing       {', '.join(missing)}: pip install 'sglang-dsl[engine]'")
    else:
        lines += _device_lines()
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _host_lines() -> list[str]:
    host = settings.apply()
    kept = "keeps freed memory" if host.allocator_keeps_memory else "left as it is"
    lines = [
        f"threads       {host.threads} of {host.physical_cores} physical cores (OMP_NUM_THREADS overrules)",
        f"allocator     {kept}",
        f"waiting       OMP_WAIT_POLICY={host.wait_policy}",
    ]
    return lines + [f"note          {note}" for note in host.notes]


def _model_lines() -> list[str]:
    lines = [f"models        {cache_folder()}"]
    for model in list_models():
        where = str(model.path) if model.path else f"not here: sglang-dsl models pull {model.entry.name}"
        lines.append(f"  {model.entry.name:<12}{where}")
    return lines


def _device_lines() -> list[str]:
    import torch

    from ...model.linears import computes_bfloat16

    weights = "bfloat16" if computes_bfloat16() else "float32 (no bfloat16 instructions)"
    lines = [f"cpu weights   {weights}"]
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        lines.append(f"gpu           {torch.cuda.get_device_name()}, {free >> 20:,} of {total >> 20:,} MiB free")
    elif torch.version.cuda is None:
        lines.append("gpu           none: this torch was built without CUDA (https://pytorch.org/get-started)")
    else:
        lines.append("gpu           none: torch has CUDA, but sees no device (driver, or CUDA_VISIBLE_DEVICES)")
    return lines
