"""Few-shot classification by `select`: the model scores the choices instead of writing freely.

The examples are shared by all questions, and the choices of a question share its prompt: each token is computed once.

    sglang-dsl run examples/few_shot_select.py
"""

from __future__ import annotations

from sglang_dsl import State, program, select

SHOTS = (
    ("The rope snapped on the first pull.", "complaint"),
    ("Where do I find the size chart?", "question"),
    ("Best boots I ever had, thank you!", "praise"),
    ("Do you ship to the islands?", "question"),
    ("The colours are even nicer than in the picture.", "praise"),
    ("Two of the six pegs were bent when I opened the bag.", "complaint"),
)
KINDS = (" complaint", " question", " praise")  # for the model a word and the blank before it are one token
MESSAGES = (
    "The stove arrived without its pump.",
    "Can I rent the canoe for half a day?",
    "We had a wonderful week, the tent stayed dry all the time.",
    "How heavy is the small rucksack?",
    "Nobody picked up the phone for three days.",
)


@program
def classify(s: State, messages: list[str]) -> list[str]:
    """The kind of each message."""
    kind = select("kind", KINDS)
    s += "Sort customer messages into complaint, question or praise.\n\n"
    for text, label in SHOTS:
        s += f"Message: {text}\nKind: {label}\n\n"
    branches = s.fork(len(messages))
    for branch, message in zip(branches, messages, strict=True):
        branch += f"Message: {message}\nKind:"
        branch += kind
    return branches.join(kind)


def main() -> None:
    """Print each message with its kind."""
    result = classify.run(list(MESSAGES))
    for message, kind in zip(MESSAGES, result.value, strict=True):
        print(f"{kind.strip():<10} {message}")


if __name__ == "__main__":
    main()
