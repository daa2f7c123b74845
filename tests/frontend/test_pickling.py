"""What crosses to other processes: every error with all it holds, programs and tools by name. cases: 117"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from sglang_dsl import errors, gen, program, tool
from sglang_dsl.errors import DslError, InvalidValueError, JoinError, Origin, RemoteError, TruncatedError
from sglang_dsl.ir.execution import MISSING
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.ir.values import RecordedError
from sglang_dsl.testing import mock

HERE = Origin("program.py", 7, "triage", 4, 9)
REQUIRED: dict[str, dict[str, Any]] = {
    "TruncatedError": {"partial": '{"a":', "tokens": 16},
    "ContextLengthError": {"prompt_tokens": 9, "max_tokens": 4, "context_tokens": 8},
    "JoinError": {"results": [1, ValueError("no"), MISSING, {"a": (1, 2)}]},
}


def _classes(base: type[DslError] = DslError) -> list[type[DslError]]:
    return [base, *(each for sub in base.__subclasses__() if sub.__module__.startswith("sglang_dsl")
                    for each in _classes(sub))]  # fmt: skip


class Stubborn(Exception):
    """Pickles, and cannot be made again: `__init__` wants more than `args` has."""

    def __init__(self, *, needed: int) -> None:
        super().__init__(f"needed {needed}")


def _made(kind: type[DslError]) -> DslError:
    if kind is RecordedError:
        return RecordedError("E305", "it was refused")
    return kind("it was refused", hint="try again", origin=HERE, **REQUIRED.get(kind.__name__, {}))


@pytest.mark.parametrize("kind", sorted(set(_classes()), key=lambda kind: kind.__name__))
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_error_of_any_class_comes_back_with_all_its_fields(kind, protocol) -> None:
    error = _made(kind)
    error.__cause__ = ValueError("why")
    error.add_note("seen twice")
    for back in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(back) is kind
        assert str(back) == str(error)
        assert back.code == error.code
        assert repr(back.__dict__) == repr(error.__dict__)
        assert repr(back.__cause__) == repr(error.__cause__)
        assert back.args == error.args


def test_error_with_what_cannot_be_sent_holds_its_words_instead() -> None:
    error = JoinError("a branch failed", results=[Stubborn(needed=3), lambda: 0, 5])
    error.__cause__ = error.results[0]
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(back.results[0], RemoteError)
    assert str(back.results[0]) == str(back.__cause__) == "Stubborn: needed 3"
    assert "lambda" in back.results[1]
    assert back.results[2] == 5
    assert isinstance(error.results[0], Stubborn), "what is sent does not change what is here"


def test_error_inside_errors_two_hundred_deep_pickles_in_linear_time() -> None:
    error: DslError = TruncatedError("cut", partial="x", tokens=1)
    for _ in range(40):
        outer = JoinError("a branch failed", results=[error, error])
        outer.__cause__ = error
        error = outer
    assert pickle.loads(pickle.dumps(error)).results[0].what == "a branch failed"


@tool
def double(n: int) -> int:
    return n * 2


@tool
def fails(n: int) -> int:
    raise Stubborn(needed=n)


@program
def doubled(s, n: int):
    return s.call(double, n)


@program
def joined(s, n: int):
    branches = s.fork(2)
    for branch in branches:
        branch.call(fails, n)
    return branches.join("fails")


@program
def cut(s, n: int):
    s += gen("x", type=list[int], max_tokens=1)
    return s["x"]


class Shop:
    def __init__(self, stock: int) -> None:
        self.stock = stock

    @tool
    def count(self, item: str) -> int:
        return self.stock

    @program
    def ask(self, s, item: str):
        return s.call(self.count, item)

    @classmethod
    @tool
    def kind(cls) -> str:
        return cls.__name__

    @staticmethod
    @tool
    def plain(n: int) -> int:
        return n


def run_here(prog: Any, n: int) -> Any:
    with mock({"x": "[1, 2, 3]"} if prog.name == "cut" else {}) as backend:
        return prog.run(n, options=RunOptions(backend=backend)).value


def run_shop(ask: Any) -> Any:
    with mock({}) as backend:
        return ask.run("tent", options=RunOptions(backend=backend)).value


def test_program_and_tool_pickle_by_name_as_their_functions_would() -> None:
    for value in (doubled, double, Shop.count, Shop.ask, Shop.plain):
        assert pickle.loads(pickle.dumps(value)) is value
        assert copy.copy(value) is copy.deepcopy(value) is value
    bound = pickle.loads(pickle.dumps(doubled.bind(n=4)))
    with mock({}) as backend:
        assert bound.run(options=RunOptions(backend=backend)).value == 8
    assert pickle.loads(pickle.dumps(Shop(3).count))("x") == 3
    assert pickle.loads(pickle.dumps(Shop.kind))() == "Shop"
    assert run_shop(pickle.loads(pickle.dumps(Shop(3).ask))) == 3


def test_program_without_a_name_of_its_own_is_refused_like_a_local_function() -> None:
    @program
    def local(s):
        return 1

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_run_programs_and_bring_errors_back(method) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(run_here, doubled, 4).result(60) == 8
        assert pool.submit(run_shop, Shop(5).ask).result(60) == 5
        with pytest.raises(JoinError) as caught:
            pool.submit(run_here, joined, 4).result(60)
        assert len(caught.value.results) == 2
        assert "Stubborn" in str(caught.value)
        with pytest.raises((TruncatedError, InvalidValueError)):
            pool.submit(run_here, cut, 1).result(60)
        assert pool.submit(run_here, doubled, 1).result(60) == 2, BrokenProcessPool
    with context.Pool(1) as pool:
        with pytest.raises(JoinError):
            pool.apply_async(run_here, (joined, 4)).get(60)
        assert pool.apply_async(run_here, (doubled, 4)).get(60) == 8


def test_every_error_class_is_covered() -> None:
    assert {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DslError)} <= set(
        _classes()
    )
