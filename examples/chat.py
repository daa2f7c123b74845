"""A chat of several turns: every turn continues the cached state of the one before.

sglang-dsl run examples/chat.py
"""

from __future__ import annotations

import sys

from sglang_dsl import State, assistant, gen, program, system, user

QUESTIONS = (
    "What should I pack for two days in the hills in April?",
    "It may rain. What changes?",
    "Sum it up in one short sentence.",
)


@program
def chat(s: State, questions: list[str]) -> list[str]:
    """Ask one question after the other; returns the replies."""
    s += system("You are a friendly guide at an outdoor shop. Keep it short.")
    for question in questions:
        s += user(question)
        s += assistant(gen("reply", max_tokens=64, temperature=0))
    return s.all("reply")


def main() -> None:
    """Print the conversation as it is written."""
    for piece in chat.stream(list(QUESTIONS)):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
