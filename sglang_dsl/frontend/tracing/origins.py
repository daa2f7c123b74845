"""The user's line, also where a library of others stands between it and us."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

from ...errors import Origin
from ..sites import caller_origin, origin_of

_NOT_THE_USERS = tuple(
    {
        *(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[2]),
    }
)


def is_library(code: CodeType) -> bool:
    """Whether code is Python's own, ours, of an installed package, or written by one (a dataclass's `__eq__`)."""
    written = code.co_filename == "<string>" and code.co_name.startswith("__")
    return written or code.co_filename.startswith((*_NOT_THE_USERS, "<frozen", "<attrs generated"))


def user_origin() -> Origin:
    """The innermost frame that belongs to no library; else the innermost outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code):
            return origin_of(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return caller_origin()
