"""Every field of every public call, with every hostile value, beside a neighbour that wants its answer (cases: 702, 315)."""

from __future__ import annotations

import asyncio
import enum
from contextlib import suppress
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_dsl.errors import CapacityError, ContextLengthError, DslError, EngineError, SamplingError, SpecError
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions, SamplingSpec
from sglang_dsl.runtime.cache.keys import Namespace
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.schedule.request import GenerateRequest, GenerateResult, Label, ScoreRequest, ScoreResult

ITS_OWN = (ValueError, SystemExit, asyncio.CancelledError, GeneratorExit)  # what a hostile value raises itself
GREEDY = SamplingSpec(temperature=0)
SURROGATE = "a\ud800"


class Hostile:
    """Raises at whatever is asked of it."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def _raise(self, *arguments: Any) -> Any:
        raise self._error

    __index__ = __len__ = __iter__ = __getitem__ = __eq__ = __lt__ = __gt__ = __bool__ = __repr__ = _raise
    __hash__ = None  # type: ignore[assignment]


class Three(enum.IntEnum):
    THREE = 3


class EvilInt(int):
    """A whole number that cannot be compared."""

    def _raise(self, *arguments: Any) -> Any:
        raise SystemExit("compared")

    __lt__ = __gt__ = __le__ = __ge__ = __add__ = __radd__ = __neg__ = _raise


class EvilText(str):
    """A text that cannot be a key."""

    def __hash__(self) -> int:
        raise SystemExit("hashed")


HOSTILE: list[Any] = [
    None, True, False, -1, 0, 1, 2, 2**31, 2**63, 10**400, -(2**70), 1.5, -1.0, 1e308, float("nan"), float("inf"),
    float("-inf"), 1j, Decimal(3), "", "x", "2", "high", SURROGATE, b"x", bytearray(b"ab"), [], [None], [True], ["x"],
    [1.5], [-1], [10**9], [2**70], [[1]], (), (1, 2), {1, 2}, frozenset({1}), {}, {1: 2}, range(3), iter([1]), object(),
    Three.THREE, EvilInt(1), EvilText("ns"), np.int64(3), np.float32(0.5), np.bool_(True), np.array([97, 98]),
    np.array([[1]]), np.array([0.5]), np.array(1), Namespace(), Label(), GREEDY, lambda: None, Ellipsis, int,
    Hostile(ValueError("no")), Hostile(SystemExit(1)), Hostile(asyncio.CancelledError()), [Hostile(GeneratorExit())],
]  # fmt: skip
VALUES = range(len(HOSTILE))
GENERATE_FIELDS = [f.name for f in fields(GenerateRequest)]
SCORE_FIELDS = [f.name for f in fields(ScoreRequest)]


def hostile_text(place: int) -> str:
    return type(HOSTILE[place]).__name__


def check_neighbours(lab, engine, bad: Any) -> None:
    """`bad` in the middle of a submit: it ends once, the others are answered, and the engine is as before."""
    first, last = lab.request("first"), lab.request("last")
    receivers = lab.submit(first, bad, last)
    lab.settle()
    assert [type(r.end) for r in (receivers[0], receivers[2])] == [GenerateResult, GenerateResult]
    assert [len(r.ends) for r in receivers] == [1, 1, 1]
    assert isinstance(receivers[1].end, (GenerateResult, ScoreResult, DslError)), receivers[1].end
    assert engine.health().status != "closed"
    lab.assert_clean()


@pytest.mark.parametrize("name", GENERATE_FIELDS)
def test_border_every_field_of_a_generation_is_checked(lab, name):
    engine = lab.engine()
    for number in VALUES:
        bad = lab.request(f"bad{number}", max_tokens=4)
        object.__setattr__(bad, name, HOSTILE[number])
        check_neighbours(lab, engine, bad)


@pytest.mark.parametrize("name", SCORE_FIELDS)
def test_border_every_field_of_a_scoring_is_checked(lab, name):
    engine = lab.engine()
    for number in VALUES:
        bad = ScoreRequest(request_id=f"bad{number}", prompt_ids=lab.ids("p"), continuations=[lab.ids("a")])
        object.__setattr__(bad, name, HOSTILE[number])
        check_neighbours(lab, engine, bad)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_border_several_fields_at_once(lab, data):
    """Whatever two or three fields hold, and however often it is asked: nobody else notices."""
    engine = lab.engine()
    bad = lab.request("bad", max_tokens=4)
    for name in data.draw(st.lists(st.sampled_from(GENERATE_FIELDS), min_size=2, max_size=3, unique=True)):
        object.__setattr__(bad, name, HOSTILE[data.draw(st.sampled_from(VALUES))])
    check_neighbours(lab, engine, bad)


def test_border_what_is_no_request_at_all(lab):
    engine = lab.engine()
    for value in HOSTILE:
        check_neighbours(lab, engine, value)


@pytest.mark.parametrize("item", [None, 3, "ab", (1,), (1, 2, 3), object(), ("request", None), ("request", "sink")])
def test_border_an_item_without_a_receiver_is_refused_by_place_and_the_others_are_queued(lab, item):
    engine = lab.engine()
    (before,), (after,) = lab.submit(lab.request("warm")), [type(lab.submit(lab.request("w2"))[0])()]
    with pytest.raises(SpecError, match="item 1 of submit"):
        engine.submit([(lab.request("a"), before), item, (lab.request("b"), after)])
    lab.settle()
    assert [type(end) for end in before.ends] == [GenerateResult, GenerateResult]
    assert after.end.text == "abc"


@pytest.mark.parametrize("requests", [None, 3, "ab", {1, 2}])
def test_border_a_submit_of_no_list_is_refused(lab, requests):
    with pytest.raises(SpecError, match="requests="):
        lab.engine().submit(requests)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": "high"}, "priority='high' is not a whole number"),
        ({"priority": 2**40}, "out of range"),
        ({"prompt_logprobs": True}, "prompt_logprobs=True"),
        ({"prompt_logprobs": "2"}, "prompt_logprobs='2'"),
        ({"prompt_logprobs": -1}, "out of range"),
        ({"timeout_s": "1"}, "timeout_s='1' is not a number"),
        ({"timeout_s": float("nan")}, "out of range"),
        ({"timeout_s": 0}, "out of range"),
        ({"namespace": 5}, "namespace=5 is not a string"),
        ({"namespace": SURROGATE}, "lone surrogate"),
        ({"no_cache": 1}, "no_cache=1 is neither True nor False"),
        ({"constraint": "yes|no"}, "constraint='yes|no' is a str"),
        ({"foo": 1}, "there is no option 'foo'"),
        ({"time_out_s": 1}, "did you mean timeout_s"),
    ],
)
def test_border_native_options_are_refused_by_name(lab, options, said):
    engine = lab.engine()
    calls = [
        lambda: engine.generate("p", GREEDY, **options),
        lambda: engine.stream("p", GREEDY, **options),
        lambda: asyncio.run(engine.agenerate("p", GREEDY, **options)),
    ]
    if not set(options) & {"prompt_logprobs", "no_cache", "constraint"}:
        calls.append(lambda: engine.score("p", ["a"], **options))
    for call in calls:
        with pytest.raises(SpecError) as caught:
            call()
        assert said in str(caught.value)
    assert engine.generate("p", GREEDY).text == "abc"


@pytest.mark.parametrize("number", VALUES, ids=hostile_text)
@pytest.mark.parametrize("name", ["prompt", "sampling", "namespace", "priority", "timeout_s", "constraint", "no_cache"])
def test_border_native_calls_answer_or_refuse(lab, name, number):
    engine = lab.engine()
    arguments = {"prompt": "p", "sampling": GREEDY, name: HOSTILE[number]}
    with suppress(DslError, *ITS_OWN):
        engine.generate(arguments.pop("prompt"), arguments.pop("sampling"), **arguments)
    assert engine.generate("p", GREEDY).text == "abc"
    assert engine.health().status == "ok"


@pytest.mark.parametrize("continuations", [None, 3, "ab", [], [None], [3], {"a"}, [["x"]], [[True]], [[10**9]]])
def test_border_score_of_no_continuations_is_refused(lab, continuations):
    engine = lab.engine()
    with pytest.raises(SpecError):
        engine.score("p", continuations)
    assert engine.health().status == "ok"


@pytest.mark.parametrize("children", [0, -1, True, "2", None, 1.5, 2**40])
def test_border_lease_for_no_number_of_children_is_refused(lab, children):
    engine = lab.engine()
    with pytest.raises(SpecError, match="children"):
        engine.lease(lab.ids("p"), engine.info.namespace, children)
    assert not engine.turn()


def test_border_lease_release_cancel_flush_and_audit_answer_or_refuse(lab):
    engine = lab.engine()
    space = engine.info.namespace
    for value in HOSTILE:
        for call in (
            lambda: engine.lease(value, space, 1),  # noqa: B023
            lambda: engine.lease([1], value, 1),  # noqa: B023
            lambda: engine.lease([1], space, value),  # noqa: B023
            lambda: engine.release(value),  # noqa: B023
            lambda: engine.release(7, value),  # noqa: B023
            lambda: engine.cancel(value),  # noqa: B023
            lambda: engine.cancel([value]),  # noqa: B023
            lambda: engine.cancel(["x"], value),  # noqa: B023
            lambda: engine.flush(value),  # noqa: B023
            lambda: engine.audit(value),  # noqa: B023
        ):
            with suppress(SpecError, *ITS_OWN):
                call()
        lab.settle()
    assert engine.health().status == "ok"
    for lease in range(1, 4 * len(HOSTILE)):
        engine.release(lease)
    lab.settle()
    assert engine.snapshot().scheduler.leases == 0
    assert engine.generate("p", GREEDY).text == "abc"


def test_border_a_batch_with_one_bad_prompt_answers_the_others(lab):
    got = lab.engine().generate_batch(["p", None, {1, 2}, "p", [], SURROGATE], GREEDY)
    assert [type(each).__name__ for each in got] == [
        "GenerateResult", "SpecError", "SpecError", "GenerateResult", "SpecError", "SpecError",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.parametrize("method", ["started", "text", "done"])
def test_border_a_receiver_that_raises_harms_nobody(lab, error, method):
    engine = lab.engine(stepped=False)
    first, bad, last = lab.request("first"), lab.request("bad"), lab.request("last")
    receivers = lab.submit(replace(first, request_id="x"), replace(last, request_id="y"))

    def fail(*arguments: object) -> None:
        raise error

    hostile = type(receivers[0])()
    setattr(hostile, method, fail)
    more = [type(hostile)(), type(hostile)()]
    engine.submit([(first, more[0]), (bad, hostile), (last, more[1])])
    assert [r.end.text for r in (*receivers, *more)] == ["abc"] * 4
    assert engine.generate("p", GREEDY).text == "abc"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_border_a_worker_that_raises_fails_its_step_only(lab, error):
    engine = lab.engine(stepped=False)
    lab.worker.raise_at[0] = error
    with pytest.raises(EngineError, match="the model failed in step"):
        engine.generate("p", GREEDY)
    assert engine.generate("p", GREEDY).text == "abc"


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingSpec)])
def test_border_every_field_of_a_sampling_spec_is_checked(lab, name):
    """A spec that exists can be computed with: whatever it was given."""
    engine = lab.engine()
    for value in HOSTILE:
        try:
            sampling = SamplingSpec(**{"temperature": 0, "max_tokens": 4, name: value})
        except (SpecError, *ITS_OWN):
            continue
        for field in fields(SamplingSpec):
            assert type(getattr(sampling, field.name)) in (int, float, bool, tuple, type(None))
        with suppress(SpecError, ContextLengthError, CapacityError, SamplingError):
            engine.generate("p", sampling)
    assert engine.health().status == "ok"


@pytest.mark.parametrize("stop", [SURROGATE, "\udfff", "x\ud83d"])
@pytest.mark.parametrize("name", ["stop", "stop_regex"])
def test_border_stops_with_lone_surrogates_are_refused(stop, name):
    with pytest.raises(SpecError, match="lone surrogate"):
        SamplingSpec(**{name: (stop,)})
    with pytest.raises(SpecError, match="lone surrogate"):
        ConstraintSpec.choices((stop,)).text and ConstraintSpec(kind="regex", text=stop)


@pytest.mark.parametrize("name", [f.name for f in fields(RunOptions) if f.name != "backend"])
def test_border_every_run_option_is_checked(name):
    for value in HOSTILE:
        try:
            options = RunOptions(**{name: value})
        except (SpecError, *ITS_OWN):
            continue
        assert type(getattr(options, name)) in (int, float, str, dict, type(None)), (name, value)


@pytest.mark.parametrize("name", [f.name for f in fields(EngineConfig)])
def test_border_every_engine_option_is_checked(name):
    for value in HOSTILE:
        try:
            config = EngineConfig(**{name: value})
        except (SpecError, *ITS_OWN):
            continue
        assert type(getattr(config, name)) in (int, float, str, bool, type(None)), (name, value)
