"""What `make demo` runs: the support agent on the embedded engine, then how to go on.

python -m examples.demo
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from examples.support_agent import report, triage
from examples.support_desk import tickets
from sglang_dsl import RunOptions, explain
from sglang_dsl.ir.execution import resolve

PICTURE = Path("out/support_agent.html")
MOST_OVER_IDEAL = 1.03  # of the tokens that perfect sharing would compute

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


def main() -> int:
    """0 if everything came out as promised, else 1 with what did not."""
    print("loading SmolLM2-135M-Instruct ...", flush=True)
    began = time.perf_counter()
    engine = resolve("local:smollm2")
    print(f"loaded in {time.perf_counter() - began:.1f} s; answering 40 tickets ...\n", flush=True)

    began = time.perf_counter()
    result = triage.run(tickets(40), options=RunOptions(backend=engine))
    wall_s = time.perf_counter() - began
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(result.draw("html"), encoding="utf-8")
    print(report(result, wall_s, PICTURE))

    ideal = explain(result.graph, engine.meter()).cost.computed_tokens
    factor = result.usage.computed_tokens / ideal
    print(f"computed / ideal sharing: {factor:.3f} (bar: {MOST_OVER_IDEAL})\n\n{NEXT}")
    valid = len(result.value) == 40
    return 0 if valid and factor <= MOST_OVER_IDEAL else 1


if __name__ == "__main__":
    sys.exit(main())
