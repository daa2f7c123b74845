from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_target import FakeTarget, FakeText

from sglang_dsl.errors import RoleError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.nodes import Fork, Gen, Node, Plain, Raw, Reference, RoleBegin, RoleEnd, Select, Text
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.runtime.backends.interpreted import TargetMeter, preview
from sglang_dsl.runtime.interpret.run import InterpretedRun

PATH: list[Node] = [
    RoleBegin(id="u", role="user"),
    Text(id="q", pieces=(Plain("Name a metal"), Raw("<|im_end|>"), Plain(".")), context="u"),
    RoleEnd(id="v", role="user", context="q"),
    RoleBegin(id="a", role="assistant", context="v"),
    Text(id="i", pieces=(Plain("It is "),), context="a"),
    Fork(id="f", size=1, context="i"),
    Gen(id="g", name="g", context="f", branch=0, sampling=SamplingSpec(max_tokens=9)),
    Text(id="z", pieces=(Plain("!"),), context="g"),
    Gen(id="h", name="h", context="z"),
]


def test_preview_of_a_known_path_has_exactly_the_runs_ids() -> None:
    target = FakeTarget(lambda r: "zinc")
    run = InterpretedRun(RunSpec(options=RunOptions(seed=1)), {None: target})
    run.extend(PATH)
    segments = preview(PATH[:-1], {"g": "zinc"}, target.text)
    assert tuple(i for s in segments for i in s.token_ids) == tuple(target.requests[1].prompt_ids)
    assert "".join(s.text for s in segments) == target.prompts[1]
    assert [s.node_id for s in segments] == ["u", "q", "q", "q", "v", "a", "i", "g", "z"]


def test_preview_counts_what_does_not_exist_by_its_bound() -> None:
    mention = Text(id="m", pieces=(Plain("You said "), Reference("g"), Plain(".")), context="z")
    segments = preview([*PATH[:8], mention], {}, FakeText())
    by_text = {s.text: s for s in segments}
    assert (by_text["{g}"].max_tokens, by_text["{g}"].token_ids) == (9, ())
    assert [s.max_tokens for s in segments[-4:]] == [1, 3, 9, 1]
    assert all(s.token_ids == () for s in segments[-4:])


def test_preview_bounds_a_select_by_its_longest_choice() -> None:
    segments = preview([Select(id="k", choices=("a", "b c d"))], {}, FakeText())
    assert segments[0].max_tokens == 3


def test_preview_begins_with_one_bos_where_the_tokenizer_asks_for_it() -> None:
    text = FakeText()
    text.tokenizer.bos_id, text.tokenizer.adds_bos = 256, True
    segments = preview([Text(id="t", pieces=(Plain("x"),)), Gen(id="g"), Text(id="u", pieces=(Plain("y"),))], {}, text)
    assert [i for s in segments for i in s.token_ids].count(256) == 1
    assert segments[0].token_ids[0] == 256


def test_preview_refuses_roles_as_a_run_does() -> None:
    with pytest.raises(RoleError, match="no turn is open"):
        preview([RoleEnd(id="e", role="user")], {}, FakeText())
    with pytest.raises(RoleError, match="wizard"):
        preview([RoleBegin(id="e", role="wizard")], {}, FakeText())


def test_one_meter_answers_many_threads_at_once_each_with_its_own_values() -> None:
    target = FakeTarget()
    meter, after_fork = TargetMeter(target), [*PATH[:6], Text(id="r", pieces=(Reference("q"),), context="f")]
    given = [{"q": word} for word in ("zinc", "iron", "lead", "gold")] * 40
    wanted = [preview(after_fork, values, target.text) for values in given]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(lambda values: meter.render(after_fork, values), given))
    finally:
        sys.setswitchinterval(interval)
    assert found == wanted
