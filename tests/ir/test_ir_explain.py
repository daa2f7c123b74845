"""Cost, the prefix linter, and what `explain` says of them."""

from word_meter import WordMeter

from sglang_dsl.errors import Origin
from sglang_dsl.ir.analysis import lint
from sglang_dsl.ir.execution import Meta, Outcome
from sglang_dsl.ir.explain import cost, explain
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import (
    Arm,
    Constant,
    Fork,
    Gen,
    Input,
    Loop,
    Map,
    Plain,
    Reference,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
)
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec

RUBRIC = " Judge by these rules: " + "be strict, be fair, be brief, " * 6
WORDS = len(RUBRIC.split())


def words(node_id, count, context=None, branch=None):
    return Text(id=node_id, context=context, branch=branch, pieces=(Plain(f"{node_id} " * count),))


def gen(node_id, context, tokens=10, **fields):
    return Gen(id=node_id, context=context, name=node_id[0], sampling=SamplingSpec(max_tokens=tokens), **fields)


def fan(branches=4, preamble=100, private=3):
    nodes = [words("pre", preamble), Fork(id="f", context="pre", size=branches)]
    for i in range(branches):
        nodes += [words(f"t{i}", private, "f", i), gen(f"g{i}", f"t{i}")]
    return Graph(nodes, name="fan")


def test_cost_shared_preamble_is_computed_once():
    found = cost(fan(), WordMeter())
    assert found.asked_tokens == 4 * 103
    assert found.computed_tokens == 100 + 4 * 3
    assert [(c.new_tokens, c.shared_tokens) for c in found.calls] == [(103, 0), (3, 100), (3, 100), (3, 100)]
    assert found.bound_tokens == 40


def test_cost_peak_is_the_wave_that_holds_most():
    found = cost(fan(), WordMeter())
    assert found.peak_tokens == 100 + 4 * (3 + 10)
    assert found.peak_bytes == 15200
    assert found.critical_tokens == 10


def test_cost_generated_text_is_in_later_prompts_and_needs_no_computing():
    graph = Graph([words("a", 5), gen("g", "a", 20), words("b", 2, "g"), gen("h", "b", 7)])
    first, second = cost(graph, WordMeter()).calls
    assert (first.prompt_tokens, first.new_tokens) == (5, 5)
    assert (second.prompt_tokens, second.new_tokens, second.shared_tokens) == (27, 2, 25)


def test_cost_role_markers_count_and_forced_tokens_come_from_the_constraint():
    graph = Graph(
        [
            RoleBegin(id="r", role="user"),
            RoleEnd(id="e", context="r", role="user"),
            gen("g", "e", constraint=ConstraintSpec.choices(("a",))),
        ]
    )
    (call,) = cost(graph, WordMeter()).calls
    assert (call.prompt_tokens, call.forced_tokens) == (2, 5)


def test_cost_switch_counts_its_largest_arm_for_what_follows():
    arms = tuple(Arm((c,), Graph([words(f"{c}t", n), gen(f"{c}g", f"{c}t", 1)])) for c, n in (("x", 3), ("y", 9)))
    graph = Graph(
        [
            words("a", 10),
            Select(id="k", context="a", choices=("x", "y")),
            Switch(id="w", context="k", on=Reference("k"), arms=arms),
            gen("g", "w"),
        ]
    )
    calls = {c.node_id: c for c in cost(graph, WordMeter()).calls}
    assert (calls["xg"].prompt_tokens, calls["yg"].prompt_tokens) == (14, 20)
    assert (calls["xg"].new_tokens, calls["yg"].new_tokens) == (3, 9)
    assert calls["g"].prompt_tokens == 10 + 1 + 9 + 1
    assert calls["k"].bound_tokens == 2


def test_cost_map_and_loop_multiply_their_calls():
    body = Graph([Input(id="i", name="item"), words("t", 4, "i"), gen("g", "t")])
    graph = Graph(
        [
            words("a", 50),
            Map(id="m", context="a", items=Constant([1, 2, 3]), item="i", body=body),
            Loop(id="l", context="m", body=Graph([gen("h", None, 6)]), limit=5),
        ]
    )
    found = cost(graph, WordMeter())
    assert [(c.node_id, c.times, c.prompt_tokens) for c in found.calls] == [("g", 3, 54), ("h", 5, 50)]
    assert found.computed_tokens == 50 + 3 * 4
    assert found.node_tokens["l"] == 30


def branch_prompts(*heads, tail=RUBRIC):
    nodes = [words("pre", 5), Fork(id="f", context="pre", size=len(heads))]
    for i, head in enumerate(heads):
        origin = Origin("judge.py", 12)
        nodes += [
            Text(id=f"t{i}", context="f", branch=i, pieces=(Plain(head + tail),), origin=origin),
            gen(f"g{i}", f"t{i}"),
        ]
    return Graph(nodes)


def test_lint_equal_end_of_branches_behind_different_words_is_found():
    (finding,) = lint(branch_prompts("Is the sky blue?", "Is grass green?", "Is snow white?"), WordMeter())
    assert finding.calls == 3
    assert finding.gain_tokens in (WORDS, WORDS + 1)  # the words' common last letters may count as one more
    assert "before the fork, ahead of “Is the sky blue" in str(finding)
    assert f"+{finding.gain_tokens} shared tokens × 3 calls (judge.py:12)" in str(finding)


def test_lint_nothing_to_gain_is_silent():
    meter = WordMeter()
    assert lint(branch_prompts("a", "b", tail=" short"), meter) == []
    assert lint(branch_prompts("", "", tail=RUBRIC), meter) == []
    assert lint(fan(), meter) == []


def test_lint_constant_text_behind_an_input_or_an_item_is_found():
    rubric_behind = Text(id="t", context="q", pieces=(Plain("Q: "), Reference("q"), Plain(RUBRIC)))
    (finding,) = lint(Graph([Input(id="q", name="question"), rubric_behind, gen("g", "t")]), WordMeter())
    assert str(finding).startswith("move {question} behind “Judge by these rules")
    assert finding.gain_tokens == WORDS
    body = Graph([Input(id="q", name="question"), rubric_behind, gen("g", "t")])
    (finding,) = lint(Graph([Map(id="m", items=Constant([0] * 64), item="q", body=body)]), WordMeter())
    assert str(finding).endswith(f"+{WORDS} shared tokens × 64 calls")


def test_explain_text_says_tokens_memory_path_and_chances():
    shown = str(explain(branch_prompts("Is the sky blue?", "Is grass green?"), WordMeter()))
    assert "program on words" in shown
    assert "prompt tokens: " in shown
    assert "KV at peak:" in shown
    assert "critical path: 1 call, at most 10 tokens in a row" in shown
    assert "• put “" in shown


def test_explain_equal_calls_stand_in_one_row():
    explanation = explain(fan(40), WordMeter())
    assert len(explanation.rows) == 1
    lines = str(explanation).splitlines()
    assert lines[2].split() == ["g", "40", "103", "103,", "then", "3", "0,", "then", "100", "0", "10"]
    assert "4,120 asked, 220 to compute, 94.7% shared" in lines[3]
    assert explanation.shared_tokens == 3900


def test_explain_with_outcomes_shows_what_happened_and_the_error():
    meta = Meta(prompt_tokens=103, cached_tokens=75, computed_tokens=28, generated_tokens=4)
    outcomes = {f"g{i}": Outcome(text="x", meta=meta) for i in range(4)}
    shown = str(explain(fan(), WordMeter(), outcomes=outcomes))
    assert "412 asked (estimate +0.0%), 112 computed (estimate +0.0%), 16 generated of at most 40" in shown
    assert "10 (made 16)" in shown


def test_explain_notes_weak_constraints_and_prompts_that_cannot_fit():
    graph = Graph([words("a", 995), gen("g", "a", 10, constraint=ConstraintSpec(kind="regex", text="unbounded"))])
    notes = explain(graph, WordMeter()).notes
    assert notes == ("g: an unbounded string", "g may reach 1,005 tokens; the context has 1,000")


def test_explain_estimate_that_is_far_off_is_shown_as_a_number():
    outcomes = {
        "g0": Outcome(text="x", meta=Meta(prompt_tokens=103, cached_tokens=102, computed_tokens=1, generated_tokens=4))
    }
    assert "1 computed (estimate 112)" in str(explain(fan(), WordMeter(), outcomes=outcomes))
