"""`python -m sglang_dsl.cli`: the command without its script."""

import sys

from . import main

sys.exit(main())
