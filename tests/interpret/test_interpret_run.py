from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import (
    CancelledError,
    ContextLengthError,
    DeadlineError,
    EngineClosedError,
    GraphError,
    InvalidValueError,
    JoinError,
    RoleError,
    RunError,
    SpecError,
    ToolError,
    TruncatedError,
)
from sglang_dsl.ir.execution import MISSING, RunSpec
from sglang_dsl.ir.nodes import (
    Break,
    Constant,
    DictOf,
    Fork,
    Gen,
    Input,
    Join,
    Node,
    Operation,
    Plain,
    Raw,
    Reasoning,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    ToolNode,
)
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions, SamplingSpec
from sglang_dsl.runtime.interpret.run import InterpretedRun
from sglang_dsl.runtime.schedule.request import GenerateResult, Request, ScoreRequest

GREEDY = SamplingSpec(temperature=0, max_tokens=16)


def open_run(target: FakeTarget, *, registry: Any = None, named: Any = None, **options: Any) -> InterpretedRun:
    spec = RunSpec(program="p", options=RunOptions(seed=options.pop("seed", 7), **options), registry=registry or {})
    return InterpretedRun(spec, {None: target, **(named or {})})


def text(id_: str, said: str, context: str | None = None, branch: int | None = None) -> Text:
    return Text(id=id_, pieces=(Plain(said),), context=context, branch=branch)


def gen(id_: str, context: str | None = None, **more: Any) -> Gen:
    more.setdefault("sampling", GREEDY)
    return Gen(id=id_, name=id_, context=context, **more)


def echo(request: Request) -> str:
    return f"<{request.label.name}>"


def fork_of(target: FakeTarget, size: int, *, mode: str = "all", **join: Any) -> tuple[InterpretedRun, list[Node]]:
    """preamble, fork, one gen per branch, join: not appended yet."""
    nodes: list[Node] = [text("t", "Shared preamble. "), Fork(id="f", size=size, context="t")]
    for i in range(size):
        nodes.append(text(f"q{i}", f"Question {i}? ", "f", i))
        nodes.append(gen(f"a{i}", f"q{i}"))
    nodes.append(
        Join(
            id="j",
            context="f",
            fork="f",
            name="a",
            mode=mode,  # type: ignore[arg-type]
            tips=tuple(f"a{i}" for i in range(size)),
            values=tuple(Reference(f"a{i}") for i in range(size)),
            **join,
        )
    )
    return open_run(target, registry=join.pop("registry", None)), nodes


# order, prompts, sharing


def test_run_gen_after_text_gets_the_text_as_prompt() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("t", "Hello "), gen("a", "t"), text("u", " and ", "a"), gen("b", "u")])
    assert run.value("b").result(1).value == "<b>"
    assert target.prompts == ["Hello ", "Hello <a> and "]


def test_run_forty_children_ready_together_go_out_in_one_submit() -> None:
    target = FakeTarget(echo)
    run, nodes = fork_of(target, 40)
    run.extend(nodes)
    assert run.value("j").result(1).value == [f"<a{i}>" for i in range(40)]
    assert [len(submit) for submit in target.submits] == [40]


def test_run_fork_leases_the_parents_prompt_until_the_last_child_was_admitted() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 3)
    run.extend(nodes[:2])
    preamble = tuple(target.text.tokenizer.encode("Shared preamble. "))
    assert target.leases == {1: (preamble, 3)}
    run.extend(nodes[2:4])
    assert target.leases == {1: (preamble, 2)}
    run.extend(nodes[4:])
    assert target.leases == {}


def test_run_branch_without_a_call_gives_its_share_of_the_lease_back_when_joined() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0), text("b", "zinc", "f", 1)])
    assert target.leases[1][1] == 1
    run.extend([Join(id="j", context="f", fork="f", tips=("a", "b"), values=(Reference("a"), Reference("b")))])
    assert target.leases == {}


def test_run_nested_fork_takes_over_the_outer_lease() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t")])
    run.extend([text("u", "y ", "f", 0), Fork(id="g", size=2, context="u")])
    assert dict(target.leases.values()) == {
        tuple(target.text.tokenizer.encode("x ")): 1,
        tuple(target.text.tokenizer.encode("x ") + target.text.tokenizer.encode("y ")): 2,
    }
    run.seal()
    assert target.leases == {}


def test_run_sealed_with_everything_ended_summarises_usage() -> None:
    target = FakeTarget(echo)
    run, nodes = fork_of(target, 3)
    run.extend(nodes)
    summary = run.seal().result(1)
    asked = sum(len(request.prompt_ids) for request in target.requests)
    assert (summary.usage.calls, summary.usage.asked_tokens, summary.seed) == (3, asked, 7)
    assert summary.error is None


def test_run_segment_between_seams_is_encoded_once_however_it_was_appended() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("a", "wor"), text("b", "d", "a"), gen("c", "b")])
    assert target.requests[0].prompt_ids == tuple(target.text.tokenizer.encode("word"))


def test_run_text_after_a_fork_never_merges_with_the_text_before() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("a", "see http:"), Fork(id="f", size=2, context="a")])
    run.extend([text("b", "//x", "f", 0), gen("c", "b"), text("d", " none", "f", 1), gen("e", "d")])
    encode = target.text.tokenizer.encode
    assert target.requests[0].prompt_ids == (*encode("see http:"), *encode("//x"))
    assert target.requests[1].prompt_ids == (*encode("see http:"), *encode(" none"))


def test_run_generated_ids_are_kept_and_a_cut_tail_is_encoded_alone() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "go "), gen("a", "t"), text("u", " ok", "a"), gen("b", "u")])
    pieces = [target.text.tokenizer.intern(p) for p in ("re", "d ")]
    target.answer(
        "a",
        GenerateResult(
            request_id="", token_ids=tuple(pieces), text="red gr", tail_text="gr", finish_reason="stop", matched="en"
        ),
    )
    encode = target.text.tokenizer.encode
    assert target.requests[1].prompt_ids == (*encode("go "), *pieces, *encode("gr"), *encode(" ok"))


def test_run_fork_before_any_text_starts_branches_from_nothing() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([Fork(id="f", size=2), text("a", "q0 ", "f", 0), gen("b", "a"), text("c", "q1 ", "f", 1), gen("d", "c")])
    assert target.prompts == ["q0 ", "q1 "]
    assert target.leases == {}


def test_run_call_with_an_empty_prompt_and_no_bos_is_an_error_with_a_hint() -> None:
    target = FakeTarget(echo)
    target.text.tokenizer.bos_id = None
    run = open_run(target)
    with pytest.raises(RunError, match="empty prompt"):
        run.extend([gen("a")])


def test_run_call_with_an_empty_prompt_begins_with_the_bos() -> None:
    target = FakeTarget(echo)
    target.text.tokenizer.bos_id = 257
    target.reply = lambda r: echo(r) if r.label.name else [[-1.0], [-2.0]]
    open_run(target).extend([gen("a"), Select(id="s", choices=("a", "b"))])
    assert [tuple(request.prompt_ids) for request in target.requests] == [(257,), (257,)]


def test_run_one_bos_is_added_at_the_front_by_id_and_never_twice() -> None:
    target = FakeTarget(echo)
    tokenizer = target.text.tokenizer
    tokenizer.bos_id, tokenizer.adds_bos = tokenizer.control_id("<|endoftext|>"), True
    run = open_run(target)
    run.extend([text("a", "ping"), gen("b", "a")])
    run.extend([Text(id="c", pieces=(Raw("<|endoftext|>"), Plain("ping"))), gen("d", "c"), gen("e")])
    assert [list(r.prompt_ids).count(tokenizer.bos_id) for r in target.requests] == [1, 1, 1]


# roles


def chat(run: InterpretedRun, *, open_last: bool = False) -> None:
    run.extend(
        [
            RoleBegin(id="u1", role="user"),
            text("u2", "Name a metal.", "u1"),
            RoleEnd(id="u3", role="user", context="u2"),
            RoleBegin(id="s1", role="assistant", context="u3"),
            text("s2", "It is ", "s1"),
        ]
    )


def test_run_fork_inside_an_open_turn_continues_the_turn_exactly() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    chat(run)
    run.extend([Fork(id="f", size=2, context="s2"), gen("m", "f", branch=0), text("z", "zinc", "f", 1)])
    run.extend(
        [RoleEnd(id="e0", role="assistant", context="m"), RoleBegin(id="v", role="user", context="e0"), gen("n", "v")]
    )
    assert target.prompts[0].endswith("<|im_start|>assistant\nIt is ")
    assert target.prompts[1].endswith("It is <m><|im_end|>\n<|im_start|>user\n")


def test_run_content_that_looks_like_a_marker_stays_text() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([RoleBegin(id="a", role="user"), text("b", "<|im_end|>", "a"), gen("c", "b")])
    assert list(target.requests[0].prompt_ids).count(target.text.tokenizer.control_id("<|im_end|>")) == 0


def test_run_role_the_template_refuses_raises_at_the_role_statement_and_nothing_is_taken() -> None:
    run = open_run(FakeTarget(echo))
    with pytest.raises(RoleError, match="wizard"):
        run.extend([RoleBegin(id="a", role="wizard"), text("b", "x", "a")])
    run.extend([RoleBegin(id="a", role="user")])
    assert run.value("a").result(1).text == "<|im_start|>user\n"


def test_run_role_order_is_checked_before_the_text_before_it_exists() -> None:
    target = FakeTarget(text=type(FakeTarget().text)(alternate=True))
    run = open_run(target)
    run.extend([RoleBegin(id="a", role="user"), gen("b", "a"), RoleEnd(id="c", role="user", context="b")])
    with pytest.raises(RoleError, match="alternate"):
        run.extend([RoleBegin(id="d", role="user", context="c")])


# the border


def test_run_prompt_that_cannot_fit_raises_with_counts_before_any_call() -> None:
    target = FakeTarget(echo, context_tokens=20)
    run = open_run(target)
    with pytest.raises(ContextLengthError) as caught:
        run.extend([text("a", "w " * 8), gen("b", "a")])
    assert (caught.value.max_tokens, caught.value.context_tokens) == (16, 20)
    assert caught.value.prompt_tokens == len(target.text.tokenizer.encode("w " * 8))
    assert target.requests == []


def test_run_unknown_model_alias_names_those_there_are() -> None:
    run = open_run(FakeTarget(echo), named={"judge": FakeTarget(echo)})
    with pytest.raises(SpecError, match="judge"):
        run.extend([text("a", "x"), gen("b", "a", model="jury")])


def test_run_named_model_gets_the_call_and_its_text_crosses_over() -> None:
    main, judge = FakeTarget(echo), FakeTarget(lambda r: "guilty")
    run = open_run(main, named={"judge": judge})
    run.extend([text("a", "x "), gen("b", "a", model="judge"), text("c", "! ", "b"), gen("d", "c")])
    assert judge.prompts == ["x "]
    assert main.prompts == ["x guilty! "]


def test_run_append_after_a_failure_raises_the_first_cause() -> None:
    boom = RunError("BOOM")
    run = open_run(FakeTarget(lambda r: boom))
    run.extend([text("a", "x"), gen("b", "a")])
    with pytest.raises(RunError, match="BOOM"):
        run.extend([gen("c", "b")])
    assert run.value("b").exception(1) is boom


def test_run_failed_gen_fails_all_that_waits_for_it_at_once_with_the_same_cause() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("a", "x"), gen("b", "a"), gen("c", "b"), text("d", "y", "c"), gen("e", "d")])
    boom = RunError("BOOM")
    target.answer("b", boom)
    assert [run.value(i).exception(1) for i in ("b", "c", "d", "e")] == [boom] * 4
    assert run.seal().result(1).error is boom


def test_run_node_after_seal_is_refused() -> None:
    run = open_run(FakeTarget(echo))
    run.seal()
    with pytest.raises(RunError, match="sealed"):
        run.extend([text("a", "x")])


def test_run_break_is_refused_by_name() -> None:
    run = open_run(FakeTarget(echo))
    with pytest.raises(GraphError, match="len of a value"):
        run.extend([Break(id="x", reason="len of a value")])


def test_run_engine_that_closed_fails_the_call_with_its_error() -> None:
    run = open_run(FakeTarget(closed=True))
    run.extend([text("a", "x"), gen("b", "a")])
    assert isinstance(run.value("b").exception(1), EngineClosedError)
    assert run.seal().result(1).usage.calls == 0


# values


def test_run_json_value_is_parsed_and_checked() -> None:
    schema = ConstraintSpec.json_schema({"type": "integer", "maximum": 5})
    run = open_run(FakeTarget(lambda r: {"a": "4", "b": "9"}[r.label.name]))
    run.extend(
        [
            text("t", "x"),
            gen("a", "t", constraint=schema, decode="json"),
        ]
    )
    run.extend([text("u", "y"), gen("b", "u", constraint=schema, decode="json")])
    assert run.value("a").result(1).value == 4
    assert isinstance(run.value("b").exception(1), InvalidValueError)


def test_run_constrained_output_cut_by_length_is_truncated_and_holds_the_partial() -> None:
    schema = ConstraintSpec.json_schema({"type": "object"})
    run = open_run(FakeTarget(lambda r: ('{"names":["Ana","Bo', "length")))
    run.extend([text("t", "x"), gen("a", "t", constraint=schema, decode="json")])
    error = run.value("a").exception(1)
    assert isinstance(error, TruncatedError)
    assert error.partial == '{"names":["Ana","Bo'
    assert "Ana" not in str(error)


def test_run_length_hit_exactly_at_the_end_is_complete() -> None:
    schema = ConstraintSpec.json_schema({"type": "object"})
    run = open_run(FakeTarget(lambda r: ('{"a":1}', "length")))
    run.extend([text("t", "x"), gen("a", "t", constraint=schema, decode="json")])
    outcome = run.value("a").result(1)
    assert outcome.value == {"a": 1}
    assert outcome.meta is not None
    assert outcome.meta.finish_reason == "length"


def test_run_partial_ok_gives_the_partial_text() -> None:
    schema = ConstraintSpec.json_schema({"type": "object"})
    run = open_run(FakeTarget(lambda r: ('{"a', "length")))
    run.extend([text("t", "x"), gen("a", "t", constraint=schema, decode="json", partial_ok=True)])
    assert run.value("a").result(1).value == '{"a'


def test_run_refused_value_is_tried_again_with_another_seed() -> None:
    replies = iter(["no", "no", "yes"])
    target = FakeTarget(lambda r: next(replies))
    run = open_run(target, registry={"is_yes": lambda v: v == "yes"})
    run.extend([text("t", "x"), gen("a", "t", retries=3, validator="is_yes")])
    outcome = run.value("a").result(1)
    assert outcome.value == "yes"
    assert outcome.meta is not None
    assert outcome.meta.attempts == 3
    assert len({r.sampling.seed for r in target.requests}) == 3
    assert [r.label.attempt for r in target.requests] == [0, 1, 2]


def test_run_refusal_after_all_retries_is_an_invalid_value_error() -> None:
    def refuse(value: Any) -> None:
        raise ValueError("too short")

    run = open_run(FakeTarget(lambda r: "no"), registry={"v": refuse})
    run.extend([text("t", "x"), gen("a", "t", retries=1, validator="v")])
    with pytest.raises(InvalidValueError, match="too short"):
        run.value("a").result(1)


def test_run_text_of_a_gen_with_retries_is_shown_once_it_is_accepted() -> None:
    target = FakeTarget()
    run = open_run(target, registry={"is_yes": lambda v: v == "yes"})
    run.extend([text("t", "x"), gen("a", "t", retries=3, validator="is_yes")])
    target.answer("a", "no")
    target.answer("a", "yes")
    run.seal().result(5)
    assert [e.text for e in run.events() if e.kind == "text"] == ["yes"]


def test_run_seeds_depend_on_run_node_and_sample_and_own_seed_replaces_them() -> None:
    def seeds(run_seed: int) -> list[Any]:
        target = FakeTarget(echo)
        run = open_run(target, seed=run_seed)
        own = SamplingSpec(seed=5)
        run.extend([text("t", "x"), gen("a", "t"), text("u", "x"), gen("b", "u")])
        run.extend([text("v", "x"), gen("c", "v", sampling=own), text("w", "x"), gen("d", "w", sampling=own, sample=1)])
        return [r.sampling.seed for r in target.requests]

    first, again, other = seeds(1), seeds(1), seeds(2)
    assert first == again
    assert len({*first, *other}) == 6
    assert first[2:] == other[2:]


def test_run_reasoning_is_kept_apart_and_its_budget_is_the_first_calls_limit() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(
        [text("t", "x "), gen("a", "t", reasoning=Reasoning(budget_tokens=3)), text("u", "!", "a"), gen("b", "u")]
    )
    target.answer("a", ("hm hm", "length"))
    target.answer("a", "42")
    outcome = run.value("a").result(1)
    assert (outcome.value, outcome.text) == ("42", "42")
    assert outcome.meta is not None
    assert outcome.meta.reasoning == "hm hm"
    assert target.requests[0].sampling.max_tokens == 3
    assert target.prompts == ["x <think>", "x <think>hm hm</think>", "x <think>hm hm</think>42!"]


# select


def test_run_select_appends_the_best_choice_and_keeps_all_scores() -> None:
    target = FakeTarget(lambda r: echo(r) if not isinstance(r, ScoreRequest) else [[-1.0], [-5.4, -0.01, -0.01]])
    run = open_run(target)
    run.extend([text("t", "pick "), Select(id="s", name="s", choices=("Lyon", "a b c"), method="sum", context="t")])
    run.extend([text("u", ".", "s"), gen("g", "u")])
    outcome = run.value("s").result(1)
    assert outcome.value == "Lyon"
    assert outcome.meta is not None
    assert [c.logprobs for c in outcome.meta.choices] == [(-1.0,), (-5.4, -0.01, -0.01)]
    assert target.prompts[1] == "pick Lyon."


def test_run_select_of_one_choice_needs_no_call_and_duplicates_count_once() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("t", "pick "), Select(id="s", choices=("only", "only"), context="t")])
    assert run.value("s").result(1).value == "only"
    assert target.requests == []


@pytest.mark.parametrize("choices", [(), ("",), ("", "x")])
def test_run_select_with_no_or_an_empty_choice_is_refused(choices: tuple[str, ...]) -> None:
    run = open_run(FakeTarget(echo))
    with pytest.raises(SpecError):
        run.extend([text("t", "pick "), Select(id="s", choices=choices, context="t")])


# references, inputs, returns


def test_run_reference_with_operations_is_evaluated_in_text_and_return() -> None:
    target = FakeTarget(lambda r: " Zinc ")
    run = open_run(target)
    shouted = Reference("a", (Operation("strip"), Operation("upper")))
    run.extend(
        [text("t", "x"), gen("a", "t"), Text(id="u", context="a", pieces=(Plain("so "), shouted)), gen("b", "u")]
    )
    run.extend([Return(id="r", value=DictOf((("metal", shouted),)))])
    assert target.prompts[1].endswith("so ZINC")
    assert run.value("r").result(1).value == {"metal": "ZINC"}


def test_run_input_takes_its_value_from_the_arguments_and_misses_are_named() -> None:
    target = FakeTarget(echo)
    run = InterpretedRun(RunSpec(arguments={"n": 3}), {None: target})
    run.extend([Input(id="i", name="n"), Text(id="t", pieces=(Plain("n="), Reference("i"))), gen("a", "t")])
    assert target.prompts == ["n=3"]
    with pytest.raises(GraphError, match="'m' has no value"):
        run.extend([Input(id="k", name="m")])


# joins


def test_join_all_waits_for_siblings_and_holds_every_result() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 3)
    run.extend(nodes)
    boom = RunError("BOOM")
    target.answer("a1", boom)
    assert not run.value("j").done()
    target.answer("a0", "zero")
    target.answer("a2", "two")
    error = run.value("j").exception(1)
    assert isinstance(error, JoinError)
    assert error.results == ["zero", boom, "two"]
    assert "branch 1" in str(error)
    assert error.__cause__ is boom


def test_join_settle_keeps_positions_with_errors_and_missing() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x"), Fork(id="f", size=3, context="t"), gen("a", "f", branch=0), gen("b", "f", branch=1)])
    join = Join(
        id="j",
        context="f",
        fork="f",
        mode="settle",
        tips=("a", "b", "f"),
        values=(Reference("a"), Reference("b"), None),
    )
    run.extend([join])
    boom = RunError("BOOM")
    target.answer("b", boom)
    target.answer("a", "x")
    assert run.value("j").result(1).value == ["x", boom, MISSING]


def test_join_first_cancels_the_losers_and_records_the_winner() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 3, mode="first", k=1)
    run.extend(nodes)
    target.answer("a2", "fast")
    outcome = run.value("j").result(1)
    assert (outcome.value, outcome.winners) == (["fast"], (2,))
    assert len(target.cancelled) == 2
    assert all(isinstance(run.value(i).exception(1), CancelledError) for i in ("a0", "a1"))
    assert run.seal().result(1).usage.calls == 1


def test_join_quorum_ends_when_k_branches_agree() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 4, mode="quorum", k=2)
    run.extend(nodes)
    target.answer("a3", "no")
    target.answer("a0", "yes")
    target.answer("a1", "yes")
    outcome = run.value("j").result(1)
    assert (outcome.value, outcome.winners) == ("yes", (0, 1))
    assert len(target.cancelled) == 1


def test_join_vote_is_decided_once_the_rest_cannot_change_it() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 5, mode="vote")
    run.extend(nodes)
    target.answer("a0", "no")
    target.answer("a1", "yes")
    target.answer("a2", "yes")
    assert not run.value("j").done()
    target.answer("a3", "yes")
    assert run.value("j").result(1).value == "yes"
    assert len(target.cancelled) == 1


def test_join_best_takes_the_highest_key() -> None:
    target = FakeTarget()
    spec = RunSpec(options=RunOptions(seed=1), registry={"length": len})
    _, nodes = fork_of(target, 2, mode="best", key="length")
    run = InterpretedRun(spec, {None: target})
    run.extend(nodes)
    target.answer("a0", "a long one")
    target.answer("a1", "short")
    assert run.value("j").result(1).value == "a long one"


def test_join_best_whose_key_raises_fails_with_that_as_its_cause() -> None:
    target = FakeTarget(lambda request: "x")
    spec = RunSpec(options=RunOptions(seed=1), registry={"broken": lambda value: 1 / 0})
    _, nodes = fork_of(target, 2, mode="best", key="broken")
    run = InterpretedRun(spec, {None: target})
    run.extend(nodes)
    error = run.value("j").exception(5)
    assert isinstance(error, JoinError)
    assert "its key raised ZeroDivisionError: division by zero" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.results == ["x", "x"]


def test_join_concat_appends_the_branches_text_with_their_own_ids() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 2, mode="concat")
    run.extend([*nodes, text("u", "Sum: ", "j"), gen("s", "u")])
    target.answer("a1", "one.")
    target.answer("a0", "zero.")
    assert target.prompts[2] == "Shared preamble. Question 0? zero.Question 1? one.Sum: "
    assert run.value("j").result(1).text == "Question 0? zero.Question 1? one."


def test_join_runs_once_after_branches_of_different_length() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("t", "x"), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0)])
    run.extend([gen("b", "f", branch=1), Fork(id="g", size=2, context="b"), gen("c", "g", branch=0)])
    run.extend([gen("d", "g", branch=1)])
    run.extend([Join(id="k", context="g", fork="g", tips=("c", "d"), values=(Reference("c"), Reference("d")))])
    run.extend([gen("e", "k")])
    run.extend([Join(id="j", context="f", fork="f", tips=("a", "e"), values=(Reference("a"), Reference("e")))])
    assert run.value("j").result(1).value == ["<a>", "<e>"]
    run.seal()
    assert [e.node_id for e in run.events() if e.kind == "finished"].count("j") == 1


def test_join_text_that_mentions_it_waits_but_text_that_does_not_goes_on() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 2)
    run.extend([*nodes, text("u", "Meanwhile ", "j"), gen("m", "u")])
    assert "m" in [r.label.name for r in target.requests]
    run.extend([Text(id="v", context="m", pieces=(Reference("j"),)), gen("n", "v")])
    target.answer("m", "ok ")
    target.answer("a0", "x")
    assert "n" not in [r.label.name for r in target.requests]
    target.answer("a1", "y")
    assert target.prompts[-1].endswith('ok ["x", "y"]')


# cancelling, deadlines, budgets


def test_run_cancelled_ends_every_call_and_keeps_what_finished() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 3)
    run.extend(nodes)
    target.answer("a0", "done")
    run.cancel(reason="Ctrl-C")
    assert run.value("a0").result(1).value == "done"
    assert isinstance(run.value("a1").exception(1), CancelledError)
    assert len(target.cancelled) == 2
    summary = run.seal().result(1)
    assert isinstance(summary.error, CancelledError)
    with pytest.raises(CancelledError, match="Ctrl-C"):
        run.extend([text("z", "x")])


def test_run_cancelled_branch_ends_what_lies_below_it_and_its_join_names_it() -> None:
    target = FakeTarget()
    run, nodes = fork_of(target, 2)
    run.extend(nodes)
    run.cancel(["q1"])
    target.answer("a0", "x")
    error = run.value("j").exception(1)
    assert isinstance(error, JoinError)
    assert isinstance(error.results[1], CancelledError)


def test_run_cancelling_a_future_does_not_cancel_the_node() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x"), gen("a", "t")])
    assert run.value("a").cancel() is False
    target.answer("a", "ok")
    assert run.value("a").result(1).value == "ok"


def test_run_deadline_reaches_every_request_and_ends_what_begins_after_it() -> None:
    target = FakeTarget()
    run = open_run(target, deadline_s=10)
    run.extend([text("t", "x"), gen("a", "t", timeout_s=3), gen("b", "a"), gen("c", "b")])
    target.answer("a", "1")
    target.clock_s = 11
    target.answer("b", "2")
    assert [r.deadline_s for r in target.requests] == [3, 10]
    assert isinstance(run.value("c").exception(1), DeadlineError)


def test_run_token_budget_fails_the_calls_that_would_exceed_it() -> None:
    target = FakeTarget()
    run = open_run(target, token_budget=3)
    run.extend([text("t", "x"), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0), gen("b", "f", branch=1)])
    target.held[0].sink.text("one two three four", target.text.tokenizer.encode("one two three four"))
    assert isinstance(run.value("a").exception(1), DeadlineError)
    assert isinstance(run.value("b").exception(1), DeadlineError)
    assert len(target.cancelled) == 2


# events


def test_run_events_are_replayed_from_the_beginning_for_late_readers() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x"), gen("a", "t")])
    target.answer("a", "hello")
    run.seal().result(1)
    events = list(run.events())
    assert [(e.kind, e.node_id) for e in events] == [
        ("finished", "t"),
        ("started", "a"),
        ("text", "a"),
        ("finished", "a"),
        ("run_finished", ""),
    ]
    assert list(run.events()) == events


def test_run_reader_waiting_for_events_is_woken_by_the_end() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x"), gen("a", "t")])
    kinds: list[str] = []
    reader = threading.Thread(target=lambda: kinds.extend(e.kind for e in run.events()))
    reader.start()
    target.answer("a", "hello")
    run.seal()
    reader.join(2)
    assert kinds[-1] == "run_finished"


def test_run_listener_that_raises_harms_nobody() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    seen: list[str] = []

    def bad(event: Any) -> None:
        raise KeyError("listener")

    run.subscribe(bad)
    end = run.subscribe(lambda e: seen.append(e.kind))
    run.extend([text("t", "x"), gen("a", "t")])
    end()
    run.extend([text("u", "y", "a")])
    assert seen == ["finished", "started", "finished"]


# tools


def call(id_: str, tool: str, context: str | None = None, **more: Any) -> ToolNode:
    arguments = DictOf(tuple((k, v) for k, v in more.pop("arguments", {}).items()))
    return ToolNode(id=id_, name=id_, tool=tool, context=context, arguments=arguments, **more)


def test_tool_value_is_json_and_may_be_mentioned() -> None:
    target = FakeTarget(echo)
    run = open_run(target, registry={"add": lambda a, b: {"sum": a + b}})
    run.extend([call("x", "add", arguments={"a": Constant(1), "b": Constant(2)})])
    run.extend([Text(id="t", context="x", pieces=(Reference("x"),)), gen("g", "t")])
    assert run.value("g").result(5).value == "<g>"
    assert target.prompts == ['{"sum": 3}']
    run.seal().result(5)


def test_tool_that_raises_is_a_tool_error_with_its_cause() -> None:
    def broken() -> None:
        raise OSError("disk")

    run = open_run(FakeTarget(echo), registry={"broken": broken})
    run.extend([call("x", "broken")])
    error = run.value("x").exception(5)
    assert isinstance(error, ToolError)
    assert isinstance(error.__cause__, OSError)


def test_tool_that_outlives_its_timeout_fails_and_the_run_goes_on() -> None:
    wait = threading.Event()
    run = open_run(FakeTarget(echo), registry={"slow": lambda: wait.wait(10)})
    run.extend([call("x", "slow", timeout_s=0.01)])
    assert isinstance(run.value("x").exception(5), ToolError)
    wait.set()
    run.seal().result(5)


def test_tool_with_a_result_that_is_no_json_fails() -> None:
    run = open_run(FakeTarget(echo), registry={"bad": lambda: object()})
    run.extend([call("x", "bad")])
    assert isinstance(run.value("x").exception(5), ToolError)


def test_tool_pure_with_equal_arguments_is_called_once() -> None:
    calls: list[int] = []

    def count(n: int) -> int:
        calls.append(n)
        return n

    run = open_run(FakeTarget(echo), registry={"count": count})
    run.extend([call("x", "count", pure=True, arguments={"n": Constant(1)})])
    run.extend([call("y", "count", pure=True, arguments={"n": Constant(1)})])
    run.extend([call("z", "count", pure=True, arguments={"n": Constant(2)})])
    assert [run.value(i).result(5).value for i in "xyz"] == [1, 1, 2]
    assert sorted(calls) == [1, 2]


@pytest.mark.parametrize(("idempotent", "calls"), [(True, 3), (False, 1)])
def test_tool_that_raises_is_called_again_only_if_idempotent(idempotent: bool, calls: int) -> None:
    seen: list[int] = []

    def flaky() -> str:
        seen.append(1)
        if len(seen) < 3:
            raise OSError("try again")
        return "ok"

    run = open_run(FakeTarget(echo), registry={"flaky": flaky})
    run.extend([call("x", "flaky", idempotent=idempotent)])
    assert (run.value("x").exception(5) is None) is idempotent
    assert len(seen) == calls


def test_run_validator_runs_outside_the_engines_thread_and_its_own_fault_is_its_gens() -> None:
    threads: list[str] = []

    def validator(value: Any) -> None:
        threads.append(threading.current_thread().name)
        raise KeyError("a fault of the validator")

    run = open_run(FakeTarget(echo), registry={"v": validator})
    run.extend([text("t", "x"), gen("a", "t", retries=3, validator="v")])
    assert "KeyError" in str(run.value("a").exception(5))
    assert threads == ["user-code-0"]


def test_tool_sees_the_callers_context_variables() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    run = open_run(FakeTarget(echo), registry={"who": name.get})
    token = name.set("ann")
    run.extend([call("x", "who")])
    name.reset(token)
    assert run.value("x").result(5).value == "ann"


def test_tool_may_be_a_coroutine_function() -> None:
    async def later(n: int) -> int:
        return n + 1

    run = open_run(FakeTarget(echo), registry={"later": later})
    run.extend([call("x", "later", arguments={"n": Constant(1)})])
    assert run.value("x").result(5).value == 2


def test_tool_unknown_is_refused_when_it_is_appended() -> None:
    run = open_run(FakeTarget(echo))
    with pytest.raises(SpecError, match="no tool"):
        run.extend([call("x", "nothing")])


def test_tool_of_a_losing_branch_never_starts() -> None:
    started = threading.Event()
    target = FakeTarget()
    run = open_run(target, registry={"act": started.set})
    run.extend([text("t", "x"), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0), gen("b", "f", branch=1)])
    run.extend([call("x", "act", "b")])
    run.extend(
        [
            Join(
                id="j",
                context="f",
                fork="f",
                mode="first",
                k=1,
                tips=("a", "x"),
                values=(Reference("a"), Reference("x")),
            )
        ]
    )
    target.answer("a", "won")
    run.seal().result(5)
    assert not started.is_set()
    assert isinstance(run.value("x").exception(1), CancelledError)


def test_run_branch_that_has_not_called_yet_keeps_its_share_of_the_lease_when_it_is_joined() -> None:
    """The pinning promise: no more nodes come in the branch, but one that waits for a value has still to make its call."""
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0)])
    asks = Text(id="b", pieces=(Plain("is it "), Reference("a")), context="f", branch=1)
    join = Join(id="j", context="f", fork="f", tips=("a", "c"), values=(Reference("a"), Reference("c")))
    run.extend([asks, gen("c", "b"), join])
    assert target.leases[1][1] == 1
    run.seal()
    assert target.leases[1][1] == 1
    target.answer("a", "zinc")
    target.answer("c", "yes")
    assert [request.lease for request in target.requests] == [1, 1]
    assert target.leases == {}
    assert run.value("j").result(1).value == ["zinc", "yes"]


def test_run_branch_still_open_keeps_its_share_of_the_lease_although_all_it_has_is_done() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t"), text("a", "y ", "f", 0), text("b", "z ", "f", 1)])
    assert target.leases[1][1] == 2
    run.extend([gen("c", "a")])
    assert target.leases[1][1] == 1
    run.extend([gen("d", "b")])
    assert [request.lease for request in target.requests] == [1, 1]
    assert target.leases == {}
