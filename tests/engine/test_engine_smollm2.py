"""The engine on a real model: the page of its documentation runs as printed, and cached answers equal cold ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_dsl.ir.specs import SamplingSpec

pytestmark = [pytest.mark.engine, pytest.mark.model, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"


@pytest.fixture(scope="module")
def engine():
    from sglang_dsl.errors import ModelNotFoundError
    from sglang_dsl.runtime.backends.local import open_engine
    from sglang_dsl.runtime.model.options import ModelOptions

    try:
        opened = open_engine("smollm2", ModelOptions(batch_invariant=True))
    except ModelNotFoundError:
        pytest.skip("run `sglang-dsl models pull smollm2` first")
    with opened as engine:
        yield engine


def test_smollm2_documented_program_runs_as_printed(engine, monkeypatch, capsys):
    import sglang_dsl.runtime.backends.local as opening

    class Borrowed:
        def __enter__(self):
            return engine

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(opening, "open_engine", lambda name: Borrowed())
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    shown = capsys.readouterr().out
    assert "Paris" in shown
    assert shown.splitlines()[-1] in ("yes", "no")
    assert engine.health().status == "ok"
    engine.check()


def test_smollm2_answers_do_not_depend_on_cache_batch_or_streaming(engine):
    greedy = SamplingSpec(temperature=0, max_tokens=12)
    prompts = [f"The capital of {country} is" for country in ("France", "Italy", "Spain", "Japan")]
    engine.flush()
    cold = [engine.generate(prompt, greedy, no_cache=True) for prompt in prompts]
    batch = engine.generate_batch(prompts, greedy)
    warm = [engine.generate(prompt, greedy) for prompt in prompts]
    streamed = ["".join(engine.stream(prompt, greedy)) for prompt in prompts]
    assert all(result.cached_tokens == 0 for result in cold)
    assert all(result.cached_tokens > 0 for result in warm)
    assert [r.text for r in cold] == [r.text for r in batch] == [r.text for r in warm] == streamed
    snapshot = engine.snapshot()
    assert snapshot.live == 0
    assert snapshot.submitted == snapshot.ended
