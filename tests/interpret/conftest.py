"""Opening runs over fake targets. The helpers beside the tests are importable by name, also from tests/mock."""

from __future__ import annotations

import sys
from pathlib import Path

if (folder := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(folder)
