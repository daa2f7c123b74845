"""SGLang's names over this project's frontend: `import sglang_dsl.sglang as sgl`. See `frontend/sglang_compat`."""

from __future__ import annotations

from .frontend.sglang_compat import *  # noqa: F403
from .frontend.sglang_compat import __all__ as __all__
