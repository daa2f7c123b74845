from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for text_files

from sglang_dsl.errors import ModelNotFoundError
from sglang_dsl.runtime.supply import locate
from sglang_dsl.runtime.text.load import LoadedText, load_text


@pytest.fixture(scope="session")
def smollm2() -> LoadedText:
    try:
        files = locate("smollm2")
    except ModelNotFoundError:
        pytest.skip("SmolLM2 is not downloaded (sglang-dsl models pull smollm2)")
    return load_text(files.path, files.fingerprint)
