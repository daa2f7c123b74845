"""The mock sits below stops, UTF-8, constraints, cache and time: what a model would be given, it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_dsl.errors import (
    CancelledError,
    DeadlineError,
    EngineError,
    InvalidValueError,
    JoinError,
    ScriptError,
    SpecError,
    TruncatedError,
)
from sglang_dsl.ir.execution import RunSpec, resolve
from sglang_dsl.ir.nodes import Fork, Gen, Join, Node, Plain, Reasoning, Reference, Select, Text
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions, SamplingSpec
from sglang_dsl.runtime.backends.mock import (
    MockExecutor,
    Piece,
    Rule,
    cut_off,
    fails,
    malformed,
    mock,
    pieces,
    stalls,
)
from sglang_dsl.runtime.engine.border import EngineConfig

TIMEOUT_S = 20
GREEDY = SamplingSpec(temperature=0, max_tokens=64)


def text(id_: str, said: str, context: str | None = None, branch: int | None = None) -> Text:
    return Text(id=id_, pieces=(Plain(said),), context=context, branch=branch)


def gen(id_: str, context: str | None = None, *, branch: int | None = None, **more: Any) -> Gen:
    sampling = {"temperature": 0, "max_tokens": 64, **{k: more.pop(k) for k in list(more) if hasattr(GREEDY, k)}}
    return Gen(id=id_, name=id_, context=context, branch=branch, sampling=SamplingSpec(**sampling), **more)


def execute(backend: MockExecutor, nodes: Sequence[Node], **options: Any) -> Any:
    run = backend.open(RunSpec(options=RunOptions(seed=1, **options)))
    run.extend(nodes)
    run.seal()
    return run


def one(backend: MockExecutor, prompt: str = "Say: ", **more: Any) -> Any:
    with backend:
        run = execute(backend, [text("t", prompt), gen("a", "t", **more)])
        outcome = run.value("a").result(TIMEOUT_S)
        deltas = [e.text for e in run.events() if e.kind == "text"]
        assert "".join(deltas) == outcome.text
        return outcome, deltas


# stops (cases 6, 7, 9)


def test_mock_stop_over_several_tokens_is_never_shown_in_part() -> None:
    outcome, deltas = one(mock(emits=["red ", "gr", "een", "-lig", "ht now"]), stop=("green-light",))
    assert outcome.text == "red "
    assert (outcome.meta.finish_reason, outcome.meta.matched) == ("stop", "green-light")
    assert all("g" not in delta for delta in deltas)


def test_mock_stop_is_kept_once_with_include_stop() -> None:
    outcome, _ = one(mock(emits=["red ", "gr", "een", "-lig", "ht now"]), stop=("green-light",), include_stop=True)
    assert outcome.text == "red green-light"


@pytest.mark.parametrize(
    ("emitted", "stops", "prompt", "expected"),
    [
        (["5 gr", "ee", "k olives"], ("green-light",), "p", "5 greek olives"),
        (["x gr"], ("green-light",), "p", "x gr"),
        (["x a b c"], ("b c", "a b"), "p", "x "),
        (["go END"], ("END",), "END", "go "),
    ],
)
def test_mock_held_back_text(emitted: list[str], stops: tuple[str, ...], prompt: str, expected: str) -> None:
    outcome, _ = one(mock(emits=emitted), prompt, stop=stops)
    assert outcome.text == expected


def test_mock_text_after_a_stop_inside_a_token_continues_from_the_cut() -> None:
    with mock({"a": pieces("red gr", "een now"), "b": "x"}) as backend:
        nodes = [text("t", "Say: "), gen("a", "t", stop=("green",)), text("u", "|", "a"), gen("b", "u")]
        execute(backend, nodes).value("b").result(TIMEOUT_S)
        assert backend.calls("b").prompts == ["Say: red |"]


# UTF-8 (cases 11, 13)


def test_mock_character_over_two_tokens_is_shown_whole() -> None:
    outcome, deltas = one(mock(emits=[b"ok", b"\xf0\x9f", b"\x99\x82", b"!"]))
    assert outcome.text == "ok🙂!"
    assert "\ufffd" not in "".join(deltas)


def test_mock_stop_on_a_character_over_two_tokens_cuts_before_it() -> None:
    assert one(mock(emits=[b"ok", b"\xf0\x9f", b"\x99\x82", b"!"]), stop=("🙂",))[0].text == "ok"
    assert one(mock(emits=[b"ok", b"\xf0\x9f", b"\x99\x82", b"!"]), stop=("\ufffd",))[0].text == "ok🙂!"


def test_mock_logprobs_carry_raw_bytes_and_alternatives() -> None:
    second = Piece(b"\x99\x82", top=((b"\x99\x82", -0.1), (b"\x98\x80", -2.5)))
    outcome, _ = one(mock(emits=[b"ok", b"\xf0\x9f", second, b"!"]), logprobs=2)
    scores = outcome.meta.token_scores
    assert b"".join(score.token_bytes for score in scores).decode() == outcome.text
    assert [list(b) for _, _, b in scores[2].top] == [[153, 130], [152, 128]]


# constraints (cases 50, 73, 76)

INTEGER = ConstraintSpec.json_schema({"type": "integer"})
NAMES = ConstraintSpec.json_schema(
    {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}, "required": ["names"]}
)


def test_mock_constrained_reply_is_read_back_typed() -> None:
    outcome, _ = one(mock({"a": {"names": ["Ana"]}}), constraint=NAMES, decode="json")
    assert outcome.value == {"names": ["Ana"]}


def test_mock_reply_that_breaks_its_constraint_is_reported() -> None:
    with pytest.raises(ScriptError, match="breaks its constraint: token 0"):
        one(mock({"a": "many"}), constraint=INTEGER, decode="json")
    with pytest.raises(ScriptError, match="ends before the constraint is complete"):
        one(mock({"a": '{"names":["Ana"'}), constraint=NAMES, decode="json")


def test_mock_masked_reply_is_cut_and_completed_as_a_models_would_be() -> None:
    outcome, _ = one(mock({"a": '{"names":["Ana"] oops'}, masked=True), constraint=NAMES, decode="json")
    assert outcome.value == {"names": ["Ana"]}


def test_mock_malformed_reply_goes_out_and_is_refused_where_values_are_read() -> None:
    with pytest.raises(InvalidValueError, match="not JSON"):
        one(mock({"a": malformed("{")}), constraint=NAMES, decode="json")


def test_mock_output_cut_in_the_middle_is_truncated_with_the_partial_text() -> None:
    with pytest.raises(TruncatedError) as caught:
        one(mock({"a": cut_off('{"names":["Ana","Bo"]}', after=5)}), constraint=NAMES, decode="json")
    assert '{"names":["Ana","Bo"]}'.startswith(caught.value.partial)
    assert caught.value.tokens == 5


def test_mock_constraint_ends_the_output_without_a_token_for_the_end() -> None:
    outcome, _ = one(mock({"a": "yes"}), constraint=ConstraintSpec.choices(("yes", "no")))
    assert outcome.meta.finish_reason == "constraint"


def test_mock_unscripted_schema_gives_a_valid_value_that_depends_on_the_prompt_only() -> None:
    schema = ConstraintSpec.json_schema(
        {
            "type": "object",
            "properties": {
                "label": {"enum": ["bug", "idea"]},
                "score": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["label", "score"],
            "additionalProperties": False,
        }
    )

    def value(prompt: str) -> Any:
        return one(mock(unscripted="schema"), prompt, constraint=schema, decode="json")[0].value

    values = [value(f"prompt {i}") for i in range(8)]
    assert all(set(v) == {"label", "score"} and 0 <= v["score"] <= 9 for v in values)
    assert len({str(v) for v in values}) > 1
    assert value("prompt 0") == values[0]


# scripts (case 73)


def chain(calls: int) -> list[Node]:
    nodes: list[Node] = [text("t", "Go ")]
    for i in range(calls):
        nodes.append(gen(f"g{i}", nodes[-1].id))
    return nodes


def test_mock_script_in_order_is_used_up() -> None:
    with mock(["one", "two"]) as backend:
        assert execute(backend, chain(2)).value("g1").result(TIMEOUT_S).value == "two"
        assert backend.calls().texts == ["one", "two"]


def test_mock_call_beyond_the_script_fails_with_its_node_and_prompt() -> None:
    with mock(["one", "two"]) as backend:
        error = execute(backend, chain(3)).value("g2").exception(TIMEOUT_S)
    assert isinstance(error, ScriptError)
    assert "'g2'" in str(error)
    assert "Go onetwo" in str(error)


def test_mock_replies_left_over_fail_at_the_end() -> None:
    with pytest.raises(ScriptError, match="1 scripted replies were not used: reply 1: 'two'"):  # noqa: SIM117
        with mock(["one", "two"]) as backend:
            execute(backend, chain(1)).value("g0").result(TIMEOUT_S)


def test_mock_error_of_the_test_is_not_hidden_by_left_overs() -> None:
    with pytest.raises(KeyError), mock(["one"]):
        raise KeyError("the test's own")


@pytest.mark.parametrize(("policy", "third"), [("cycle", "one"), ("last", "two"), ("echo", "g2 e98d")])
def test_mock_policies_at_the_end_of_the_script(policy: Any, third: str) -> None:
    with mock(["one", "two"], policy=policy) as backend:
        assert execute(backend, chain(3)).value("g2").result(TIMEOUT_S).value == third


def test_mock_nearest_name_is_shown() -> None:
    with mock({"answr": "x"}) as backend:
        error = execute(backend, [text("t", "p"), gen("answer", "t")]).value("answer").exception(TIMEOUT_S)
        assert "nearest name in the script is 'answr'" in str(error)
        with pytest.raises(ScriptError, match="answr"):
            backend.verify()
        backend.calls()
        backend._script.answer(backend.calls()[0].__class__(backend.calls()[0].request, ""))  # type: ignore[attr-defined]
        execute(backend, [text("t", "p"), gen("answr", "t")]).value("answr").result(TIMEOUT_S)


def test_mock_script_by_name_takes_one_reply_for_all_or_a_list_in_order() -> None:
    with mock({"g0": ["first"], "g1": "all"}) as backend:
        assert execute(backend, chain(2)).value("g1").result(TIMEOUT_S).value == "all"


def test_mock_script_of_rules_and_functions() -> None:
    rules = [Rule(lambda c: "x" in c.prompt, "has x"), Rule(lambda c: True, lambda c: c.prompt.upper(), times=1)]
    with mock(rules) as backend:
        run = execute(backend, [text("t", "x"), gen("a", "t"), text("u", "y"), gen("b", "u")])
        assert (run.value("a").result(TIMEOUT_S).value, run.value("b").result(TIMEOUT_S).value) == ("has x", "Y")


def test_mock_function_that_raises_fails_its_call_only() -> None:
    def reply(call: Any) -> str:
        if call.name == "g1":
            raise KeyError("script")
        return "ok"

    with mock(reply) as backend:
        run = execute(backend, [text("t", "x"), Fork(id="f", size=2, context="t"), *(_branch(i) for i in range(2))])
        assert run.value("g0").result(TIMEOUT_S).value == "ok"
        assert "script" in repr(run.value("g1").exception(TIMEOUT_S))


def _branch(i: int) -> Node:
    return gen(f"g{i}", "f", branch=i)


def test_mock_siblings_get_replies_in_branch_order() -> None:
    with mock([f"r{i}" for i in range(20)]) as backend:
        nodes = [text("t", "x"), Fork(id="f", size=20, context="t"), *(_branch(i) for i in range(20))]
        run = execute(backend, nodes)
        assert [run.value(f"g{i}").result(TIMEOUT_S).value for i in range(20)] == [f"r{i}" for i in range(20)]


def test_mock_refuses_a_text_as_script_and_an_argument_by_name() -> None:
    with pytest.raises(ScriptError, match="not a single text"):
        mock("one")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="takes no argument"):
        resolve("mock:fast")
    with pytest.raises(SpecError, match="both"):
        mock(["a"], emits=["b"])


def test_mock_by_name_answers_everything_the_same_way_twice() -> None:
    backend = resolve("mock")

    def texts() -> list[Any]:
        run = backend.open(RunSpec(options=RunOptions(seed=1)))
        run.extend([text("t", "x"), gen("a", "t"), gen("b", "a", constraint=INTEGER, decode="json")])
        run.extend([Select(id="s", choices=("p", "q"), context="b")])
        return [run.value(i).result(TIMEOUT_S).value for i in "abs"]

    first = texts()
    assert texts() == first
    assert first[0].startswith("a ")
    assert isinstance(first[1], int)


# select (cases 14, 15, 16, 18)


def select(backend: MockExecutor, *choices: str, method: Any = "mean", prompt: str = "Pick ") -> Any:
    with backend:
        node = Select(id="k", name="k", choices=choices, method=method, context="t")
        return execute(backend, [text("t", prompt), node]).value("k").result(TIMEOUT_S)


@pytest.mark.parametrize(("method", "winner"), [("mean", "Incomprehensibilities"), ("sum", "Lyon"), ("greedy", "Lyon")])
def test_mock_select_method_changes_the_answer(method: Any, winner: str) -> None:
    scores = {"Lyon": [-1.0], "Incomprehensibilities": [-5.4, *[-0.01] * 5]}
    outcome = select(mock({"k": scores}), "Lyon", "Incomprehensibilities", method=method)
    assert outcome.value == winner
    if method == "mean":
        assert outcome.meta.choices[1].score == pytest.approx(-0.9083, abs=1e-4)


def test_mock_select_scores_each_choice_on_its_own_path() -> None:
    first = {"X": 0.6, "Y": 0.4}
    after = {("X", "Y"): 0.1, ("X", "X"): 0.9, ("Y", "X"): 0.9, ("Y", "Y"): 0.1}

    def language_model(before: str, token: str) -> float:
        return math.log(after.get((before[-1], token)) or first[token])

    backend = mock(language_model=language_model)
    tokenizer: Any = backend.target.text.tokenizer
    encode = tokenizer.encode
    tokenizer.encode = lambda said: [i for c in said for i in encode(c)] if said in ("XY", "YX") else encode(said)
    outcome = select(backend, "XY", "YX", method="sum")
    assert outcome.value == "YX"
    assert [math.exp(c.score) for c in outcome.meta.choices] == pytest.approx([0.06, 0.36])


def test_mock_select_spans_hold_exactly_the_choice() -> None:
    backend = mock(unscripted="echo")
    outcome = select(backend, "Paris", "7", prompt="Answer: ")
    decode = backend.target.text.tokenizer.decode
    assert [decode(choice.token_ids) for choice in outcome.meta.choices] == ["Paris", "7"]


@pytest.mark.parametrize("pair", [("New", "New York"), ("yes", "yesterday"), ("1", "10")])
@pytest.mark.parametrize("reverse", [False, True])
def test_mock_select_reaches_a_choice_that_begins_another(pair: tuple[str, str], reverse: bool) -> None:
    choices = pair[::-1] if reverse else pair
    for winner in pair:
        scores = {choice: (-0.1 if choice == winner else -2.0) for choice in pair}
        assert select(mock({"k": scores}), *choices).value == winner


@pytest.mark.parametrize(("more", "winner"), [(-0.2, "New York"), (-3.0, "New")])
def test_mock_select_greedy_lets_the_shorter_one_end_where_the_longer_goes_on_unlikely(
    more: float, winner: str
) -> None:
    scores = {"New": [-0.2], "New York": [-0.2, more]}
    for choices in (("New", "New York"), ("New York", "New")):
        assert select(mock({"k": scores}), *choices, method="greedy").value == winner


def test_mock_select_scripted_choice_has_to_be_one() -> None:
    with pytest.raises(ScriptError, match="is no choice of it"):
        select(mock({"k": "Rome"}), "Paris", "Lyon")
    assert select(mock({"k": "Lyon"}), "Paris", "Lyon").value == "Lyon"


def test_mock_select_over_five_thousand_choices() -> None:
    choices = tuple(f"choice number {i}" for i in range(5000))
    scores = {choice: -1.0 if choice != "choice number 4321" else -0.5 for choice in choices}
    assert select(mock({"k": scores}), *choices).value == "choice number 4321"


# sharing, cache, time


def fan_out(width: int, **join: Any) -> list[Node]:
    nodes: list[Node] = [text("t", "word " * 200), Fork(id="f", size=width, context="t")]
    for i in range(width):
        nodes += [text(f"q{i}", f"Q{i}? ", "f", i), gen(f"a{i}", f"q{i}")]
    tips = tuple(f"a{i}" for i in range(width))
    values = tuple(Reference(tip) for tip in tips)
    return [*nodes, Join(id="j", context="f", fork="f", tips=tips, values=values, **join)]


@pytest.mark.parametrize("page_size", [1, 16])
def test_mock_fan_out_prefills_the_parent_once_and_runs_all_at_once(page_size: int) -> None:
    with mock(
        lambda call: "yes", page_size=page_size, num_pages=8192, config=EngineConfig(check_integrity=True)
    ) as backend:
        run = execute(backend, fan_out(40))
        assert run.value("j").result(TIMEOUT_S).value == ["yes"] * 40
        calls = backend.calls()
        assert calls.prefilled_once or page_size > 1
        assert calls.max_parallel == 40
        assert calls.computed_tokens <= calls.distinct_tokens + 40 * page_size
        usage = run.seal().result(TIMEOUT_S).usage
        assert (usage.asked_tokens, usage.computed_tokens) == (calls.asked_tokens, calls.computed_tokens)
        snapshot = backend.engine.snapshot().scheduler
        assert snapshot.leases == 0
        assert snapshot.free_pages + snapshot.evictable_pages == snapshot.total_pages


def test_mock_two_thousand_branches_add_no_threads() -> None:
    import threading

    with mock(lambda call: "v") as backend:
        before = threading.active_count()
        run = execute(backend, fan_out(2000))
        assert len(run.value("j").result(60).value) == 2000
        assert threading.active_count() <= before + 1


def test_mock_deadline_is_in_virtual_time_and_takes_no_real_time() -> None:
    with mock({"a": stalls()}) as backend:
        run = execute(backend, [text("t", "x"), gen("a", "t", max_tokens=5000, timeout_s=3.0)])
        assert isinstance(run.value("a").exception(TIMEOUT_S), DeadlineError)


def test_mock_slow_model_says_its_text_after_a_while() -> None:
    outcome, _ = one(mock({"a": stalls("late", tokens=10)}))
    assert outcome.text == "late"
    assert outcome.meta.finished_s >= 10 * 0.01


def test_mock_fault_after_some_tokens_shows_them_and_fails() -> None:
    with mock({"a": fails("gone", after=2, reply=pieces("one", " two", " three"))}) as backend:
        run = execute(backend, [text("t", "x"), gen("a", "t")])
        error = run.value("a").exception(TIMEOUT_S)
        assert isinstance(error, EngineError)
        assert error.retryable
        assert "".join(e.text for e in run.events() if e.kind == "text") == "one two"


# joins under time (cases 20, 21)


def test_mock_branch_that_fails_leaves_its_siblings_results() -> None:
    with mock(fail_if="BOOM") as backend:
        nodes = fan_out(3)
        nodes[4] = text("q1", "BOOM ", "f", 1)
        run = execute(backend, nodes)
        error = run.value("j").exception(TIMEOUT_S)
        assert isinstance(error, JoinError)
        assert isinstance(error.results[1], EngineError)
        assert error.results[0] == run.value("a0").result().value
        assert "BOOM" in str(error)


def test_mock_settle_keeps_positions() -> None:
    with mock(fail_if="BOOM") as backend:
        nodes = fan_out(3, mode="settle")
        nodes[4] = text("q1", "BOOM ", "f", 1)
        values = execute(backend, nodes).value("j").result(TIMEOUT_S).value
        assert [type(v).__name__ for v in values] == ["str", "EngineError", "str"]


def test_mock_first_is_decided_by_the_shortest_and_ties_go_to_the_lowest_branch() -> None:
    replies = {"a0": "one two three four", "a1": "one", "a2": "one", "a3": "one two"}
    with mock(lambda call: replies[call.name]) as backend:
        run = execute(backend, fan_out(4, mode="first", k=1))
        outcome = run.value("j").result(TIMEOUT_S)
        assert outcome.winners == (1,)
        assert all(isinstance(run.value(f"a{i}").exception(1), CancelledError) for i in (0, 3))
        run.seal().result(TIMEOUT_S)
        assert backend.engine.snapshot().scheduler.leases == 0


def test_mock_losers_compute_no_token_after_the_deciding_step() -> None:
    replies = {"a0": "one", "a1": " ".join(["word"] * 50)}
    with mock(lambda call: replies[call.name]) as backend:
        run = execute(backend, fan_out(2, mode="first", k=1))
        run.value("j").result(TIMEOUT_S)
        run.seal().result(TIMEOUT_S)
        assert backend.engine.snapshot().generated_tokens <= 2 * 2


def test_mock_branches_of_several_calls_that_end_in_one_step_are_ordered_by_index() -> None:
    """Branch 1 submits its last call before branch 0 does, and both end in the same step."""
    replies = {"a0": "x y z", "b0": "x", "a1": "x", "b1": "x y z"}
    nodes: list[Node] = [text("t", "go "), Fork(id="f", size=2, context="t")]
    for i in range(2):
        nodes += [gen(f"a{i}", "f", branch=i), gen(f"b{i}", f"a{i}")]
    join = Join(
        id="j", context="f", fork="f", mode="first", k=1, tips=("b0", "b1"), values=(Reference("b0"), Reference("b1"))
    )
    with mock(lambda call: replies[call.name]) as backend:
        run = execute(backend, [*nodes, join])
        assert run.value("j").result(TIMEOUT_S).winners == (0,)
        ends = {call.name: call.result.finished_s for call in backend.calls() if call.error is None}
        assert run.record().outcomes["b0"].meta.finished_s > 0
        assert set(ends) >= {"a0", "a1", "b0"}


def test_mock_equal_calls_are_one_where_asked_for() -> None:
    nodes = [text("t", "x"), Fork(id="f", size=3, context="t")]
    nodes += [Gen(id=f"g{i}", name="g", context="f", branch=i, sampling=GREEDY) for i in range(3)]
    with mock(["once"], share_equal=True) as backend:
        run = execute(backend, nodes)
        assert [run.value(f"g{i}").result(TIMEOUT_S).value for i in range(3)] == ["once"] * 3
        assert backend.calls().count == 1


def test_mock_tool_calls_and_reasoning_are_replies_like_any_other() -> None:
    thinking = Gen(id="a", name="a", context="t", sampling=GREEDY, reasoning=Reasoning(budget_tokens=8))
    with mock(["let me see</think>", "42"]) as backend:
        outcome = execute(backend, [text("t", "x "), thinking]).value("a").result(TIMEOUT_S)
        assert (outcome.value, outcome.meta.reasoning) == ("42", "let me see")
        assert backend.calls().prompts[1] == "x <think>let me see</think>"
