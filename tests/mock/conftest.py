"""The random programs of tests/interpret are used here, too."""

from __future__ import annotations

import sys
from pathlib import Path

if (folder := str(Path(__file__).parents[1] / "interpret")) not in sys.path:
    sys.path.append(folder)
