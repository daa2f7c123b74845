"""Tree of thought: propose steps side by side, let the model pick one, go deeper from there.

Every proposal of a level shares everything above it, so a level costs its own tokens only. The whole program can be
traced, stored and run without this file: its only decision is a `select`.

    sglang-dsl run examples/tree_of_thought.py
"""

from __future__ import annotations

import argparse

from sglang_dsl import State, assistant, gen, program, select, user

PROBLEM = (
    "A hut warden has one sledge, a dog team that needs four hours of rest after each trip, and three parcels for huts "
    "that lie two, three and five hours away. The storm comes in fourteen hours. Plan the trips."
)
LENSES = ("the fastest way", "the safest way", "the way that is kindest to the dogs", "the way with the least weight")


@program
def explore(s: State, problem: str, depth: int = 2) -> list[str]:
    """One thought per level: the one the model picks of `len(LENSES)` proposals, each made in a branch of its own."""
    thought = gen("thought", max_tokens=40, temperature=0, stop="\n")
    pick = select("pick", [str(number) for number in range(1, len(LENSES) + 1)])
    chosen: list[str] = []
    s += user(f"{problem}\nThink in short steps.")
    with s.assistant():
        for level in range(1, depth + 1):
            branches = s.fork(len(LENSES))
            for branch, lens in zip(branches, LENSES, strict=True):
                branch += f"\nStep {level}, {lens}: first we"
                branch += thought
            thoughts = branches.join(thought)
            for number in range(len(LENSES)):
                s += f"\nProposal {number + 1}: first we{thoughts[number]}"
            s += "\nThe number of the best proposal:\n"
            s += pick
            chosen.append(thoughts[int(s[pick]) - 1].strip())
            s += f"\nStep {level}: first we {chosen[-1]}"
    return chosen


@program
def summary(s: State, problem: str) -> str:
    """Explore, then write the plan down: a program that calls another."""
    steps = explore(s, problem)
    s += user("Write the plan as one sentence.")
    s += assistant(gen("plan", max_tokens=60, temperature=0))
    return f"{' / '.join(steps)} => {s['plan']}"


def main() -> None:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", default=PROBLEM)
    result = summary.run(parser.parse_args().problem)
    print(result.value)
    print(f"asked {result.usage.asked_tokens:,} prompt tokens, computed {result.usage.computed_tokens:,}")


if __name__ == "__main__":
    main()
