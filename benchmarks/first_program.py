"""How often the README's program answers rightly: SmolLM2 reads twenty mails, and each order is compared with the right one.

    python -m benchmarks.first_program [--check]

`--check`: exit code 1 where more than one of the twenty is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from sglang_dsl import RunOptions

README = Path(__file__).parents[1] / "README.md"
MOST_WRONG = 1
MAILS = (
    ("I'd like to rent a tent for 3 days.", "tent", 3),
    ("Can I have the canoe for 2 days, please?", "canoe", 2),
    ("We need a stove. We will bring it back in 5 days.", "stove", 5),
    ("Please reserve the canoe. We go for 4 days.", "canoe", 4),
    ("Could we have a tent for three days?", "tent", 3),
    ("How much is a stove for 6 days?", "stove", 6),
    ("Is there a canoe for 8 days in July?", "canoe", 8),
    ("One stove for 3 days.", "stove", 3),
    ("Our class would like a canoe for 5 days.", "canoe", 5),
    ("Could you hold a stove for me? I need it for 4 days.", "stove", 4),
    ("For our trip of six days we need a tent.", "tent", 6),
    ("A canoe for two days, please.", "canoe", 2),
    ("My sister wants the stove. She brings it back in six days.", "stove", 6),
    ("We come with five children and want a tent for 2 days.", "tent", 2),
    ("I want to paddle a canoe for 7 days.", "canoe", 7),
    ("A stove for 2 days would be great.", "stove", 2),
    ("Hello! A tent for 4 days?", "tent", 4),
    ("My family wants the canoe for 9 days.", "canoe", 9),
    ("For 10 days: one stove.", "stove", 10),
    ("I am looking for a tent for a week.", "tent", 7),
)


def first_program() -> dict[str, Any]:
    """The names that the README's first block of code defines."""
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise ValueError(f"{README} has no program")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(found[1], str(README), "exec", dont_inherit=True), names)
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    program = first_program()["read_orders"]
    result = program.run([mail for mail, _, _ in MAILS], options=RunOptions(backend="local:smollm2"))
    wrong = 0
    for (mail, item, days), order in zip(MAILS, result.value, strict=True):
        if (order.item, order.days) != (item, days):
            wrong += 1
            print(f"wrong: {mail!r}: {order}, not {item} for {days}")
    print(f"{len(MAILS) - wrong} of {len(MAILS)} mails read rightly")
    return int(chosen.check and wrong > MOST_WRONG)


if __name__ == "__main__":
    sys.exit(main())
