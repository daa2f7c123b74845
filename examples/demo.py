"""What `make demo` runs: the support agent on the embedded engine, then how to go on.

python -m examples.demo
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from examples.support_agent import report, triage
from examples.support_desk import tickets
from sglang_dsl import DslError, Graph, RunOptions
from sglang_dsl.ir.execution import Meter, resolve
from sglang_dsl.ir.nodes import Gen

PICTURE = Path("out/support_agent.html")
MOST_OVER_IDEAL = 1.03  # of the tokens that perfect sharing computes

NEXT = """\
your own program next:

  cat > hello.py <<'PY'
  from sglang_dsl import program, gen, user, assistant

  @program
  def hello(s, topic: str):
      s += user(f"Write one sentence about {topic}.")
      s += assistant(gen("line", max_tokens=40))
      return s["line"]
  PY
  .venv/bin/sglang-dsl run hello.py:hello --arg topic=lighthouses
  .venv/bin/sglang-dsl trace hello.py:hello --arg topic=lighthouses
"""


def distinct_tokens(graph: Graph, meter: Meter) -> int:
    """The nodes of the tree of all prompts: each token counts once per text in front of it. No engine can compute fewer."""
    tree: dict[int, Any] = {}
    count = 0
    for node in graph:
        if isinstance(node, Gen):
            at = tree
            for segment in meter.render(graph.path(node.id)[:-1], {}):
                for token_id in segment.token_ids:
                    count += token_id not in at
                    at = at.setdefault(token_id, {})
    return count


def demo() -> int:
    """0 if everything came out as promised, else 1."""
    print("loading SmolLM2-135M-Instruct ...", flush=True)
    began = time.perf_counter()
    engine = resolve("local:smollm2")
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)
    print(
        "answering 40 tickets; about a minute on two free cores, longer on busy ones; Ctrl-C stops it ...\n", flush=True
    )

    began = time.perf_counter()
    result = triage.run(tickets(40), options=RunOptions(backend=engine))
    wall_s = time.perf_counter() - began
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(result.draw("html"), encoding="utf-8")
    print(report(result, wall_s, PICTURE))

    least = distinct_tokens(result.graph, engine.meter())
    factor = result.usage.computed_tokens / least
    print(
        f"\nThe 40 prompts have {least:,} distinct tokens: what two prompts begin with counts once, and no engine can compute fewer."
    )
    print(f"Computed here: {factor:.3f} times as many (at most {MOST_OVER_IDEAL} is promised).\n\n{NEXT}")
    return 0 if len(result.value) == 40 and factor <= MOST_OVER_IDEAL else 1


def main() -> int:
    """`demo`, with one line in place of a traceback where it is stopped or something is missing."""
    try:
        return demo()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except DslError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
