"""A support agent: 40 tickets over one preamble of about 3,000 tokens, each answered with a JSON object.

An engine that sees 40 separate prompts reads the preamble 40 times. This program says `fork`, so the runtime reads it
once, keeps it while any ticket still needs it, and answers all tickets in one batch.

    sglang-dsl run examples/support_agent.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from examples.support_desk import Answer, preamble, tickets
from sglang_dsl import Result, State, assistant, gen, program, system, user


@program
def triage(s: State, batch: list[str], session: int = 0) -> list[Answer]:
    """Answer every ticket of a batch."""
    answer = gen("answer", schema=Answer, max_tokens=192, temperature=0)
    s += system(preamble(session))
    calls = s.fork(len(batch))
    for call, ticket in zip(calls, batch, strict=True):
        call += user(ticket)
        call += assistant(answer)
    return calls.join(answer)


def report(result: Result[list[Answer]], wall_s: float, picture: Path) -> str:
    """The figures a reader wants: what sharing saved, and whether every answer is what was asked for."""
    usage = result.usage
    answers = result.value
    lines = [
        *(f"  {a.tool:<16} urgency {a.urgency}  {a.summary}" for a in answers[:3]),
        f"  ... and {len(answers) - 3} more" if len(answers) > 3 else "",
        "",
        f"prompt tokens asked     {usage.asked_tokens:>9,}   what {usage.calls} separate calls would compute",
        f"prompt tokens computed  {usage.computed_tokens:>9,}   the preamble once, and each ticket",
        f"generated               {usage.generated_tokens:>9,}   in {wall_s:.1f} s: {usage.generated_tokens / wall_s:.0f} tokens/s",
        f"peak KV pages           {usage.peak_kv_pages:>9,}",
        f"valid answers           {sum(isinstance(a, Answer) for a in answers):>6} of {len(answers)}",
        "",
        f"the graph of this run: {picture}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run it once and show what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tickets", type=int, default=40)
    parser.add_argument("--session", type=int, default=0, help="changes the preamble's first line: starts cold")
    parser.add_argument("--picture", type=Path, default=Path("out/support_agent.html"))
    chosen = parser.parse_args()

    began = time.perf_counter()
    result = triage.run(tickets(chosen.tickets), chosen.session)
    wall_s = time.perf_counter() - began
    chosen.picture.parent.mkdir(parents=True, exist_ok=True)
    chosen.picture.write_text(result.draw("html"), encoding="utf-8")
    print(report(result, wall_s, chosen.picture))


if __name__ == "__main__":
    main()
