"""CPU seconds of the first answer of SmolLM2 from a fresh process: import, load, one call.

`python -m benchmarks.first_answer --check` measures the package as it is, then `--against` (a folder with another copy of it,
for instance a git worktree), turn about, and fails unless the first takes at most half.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sglang_dsl as dsl

@dsl.program
def ask(s):
    with s.user():
        s += "Name a metal."
    with s.assistant():
        s += dsl.gen("metal", max_tokens=8, temperature=0)

print(ask.run(options=dsl.RunOptions(backend="local:smollm2")).text)
"""


def cpu_seconds(folder: Path) -> float:
    """Of one fresh process, its threads included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=folder, stdout=subprocess.DEVNULL)  # cwd goes first
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--against", type=Path, help="a folder that holds another copy of the package")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    own = Path(__file__).parents[1]
    cpu_seconds(own)  # fills the caches of the file system, and this package's own
    mine, other = [], []
    for _ in range(chosen.runs):
        mine.append(cpu_seconds(own))
        if chosen.against:
            other.append(cpu_seconds(chosen.against))
    now = statistics.median(mine)
    print(f"first answer: {now:.2f} CPU s (median of {len(mine)}; {min(mine):.2f} to {max(mine):.2f})")
    if other:
        before = statistics.median(other)
        print(f"{chosen.against}: {before:.2f} CPU s ({min(other):.2f} to {max(other):.2f}); ratio {now / before:.2f}")
        return int(chosen.check and now > before / 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
