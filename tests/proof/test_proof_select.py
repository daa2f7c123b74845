"""Select on a real forward, through the language: the trie's scores are those of each choice computed alone."""

from __future__ import annotations

import math

import pytest

from sglang_dsl import State, program, select
from sglang_dsl.errors import RunError
from sglang_dsl.ir.specs import RunOptions

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PROMPT = "The best metal is "
METHODS = ("mean", "sum", "greedy", "unconditional")
CHOICES = ("iron", "irony", "ir", "zinc", "z", "copper and tin")


@pytest.fixture(scope="module")
def plain():
    pytest.importorskip("torch")
    from tiny_engine import PlainModel

    return PlainModel()


@program
def choose(s: State, prompt: str, choices: list[str], method: str):
    s += prompt
    s += select("k", choices, method=method)
    return s["k"]


@pytest.fixture
def chosen(open_tiny):
    """Function (choices, method, prompt=PROMPT, **engine options) -> (result, its choice scores, the tiny engine)."""
    from sglang_dsl.runtime.backends.interpreted import InterpretedExecutor

    def run(choices, method, prompt=PROMPT, **options):
        tiny = open_tiny(**options)
        background = InterpretedExecutor("tiny", Turning(tiny.engine), lambda: None)
        result = choose.run(prompt, list(choices), method, options=RunOptions(backend=background))
        return result, result.state.meta("k").choices, tiny

    return run


class Turning:
    """A Target over an engine that is turned by its owner: whoever submits turns it to the end."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def submit(self, requests):
        self._engine.submit(requests)
        while self._engine.turn():
            pass


def greedy_winner(plain, choices):
    """Ten lines that do what the method says, one token at a time."""
    alive, said = [list(c.encode()) for c in choices], []
    while True:
        going_on = [c for c in alive if len(c) > len(said)]
        if not going_on:
            return bytes(alive[0]).decode()
        row = plain.logprobs([*PROMPT.encode(), *said])[-1]
        best = max(going_on, key=lambda c: float(row[c[len(said)]]))[len(said)]
        if len(going_on) < len(alive) and float(row[best]) <= math.log(0.5):
            return bytes(said).decode()
        said.append(best)
        alive = [c for c in alive if c[: len(said)] == said]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("method", METHODS)
def test_select_by_each_method_scores_every_choice_on_its_own_path(chosen, plain, method, order):
    choices = CHOICES[::order]
    result, scores, tiny = chosen(choices, method)
    own = {c: plain.continuation(PROMPT.encode(), c.encode()) for c in choices}
    free = {c: [0.0, *plain.continuation(c.encode()[:1], c.encode()[1:])] for c in choices}
    expected = {
        "sum": {c: sum(own[c]) for c in choices},
        "mean": {c: sum(own[c]) / len(c) for c in choices},
        "unconditional": {c: (sum(own[c]) - sum(free[c])) / len(c) for c in choices},
    }
    for score in scores:
        assert score.logprobs == pytest.approx(own[score.text], abs=1e-3)
        assert bytes(score.token_ids).decode() == score.text, "the scored span is the choice, and nothing of the prompt"
        if method == "unconditional":
            assert score.unconditional == pytest.approx(free[score.text], abs=1e-3)
        if method != "greedy":
            assert score.score == pytest.approx(expected[method][score.text], abs=1e-3)
    winner = greedy_winner(plain, choices) if method == "greedy" else max(choices, key=expected[method].get)
    assert result.value == winner
    assert result.text == PROMPT + winner
    assert tiny.canary.found == []


def test_select_tokenizes_each_text_once_also_for_the_unconditional_method(chosen):
    _, _, tiny = chosen(CHOICES, "unconditional")
    assert sorted(tiny.tokenizer.encoded) == sorted([PROMPT, *CHOICES])


def test_select_computes_the_prompt_once_and_each_edge_once_in_one_forward(chosen):
    _, _, tiny = chosen(CHOICES, "mean")
    inner = {c[:end] for c in CHOICES for end in range(1, len(c))}  # what something follows
    assert tiny.canary.forwards == 1
    assert sum(len(row.token_ids) for row in tiny.canary.plans[0].rows) == len(PROMPT) + len(inner)


def test_select_of_five_thousand_choices_takes_as_few_forwards_as_the_budget_allows(chosen, plain):
    choices = [f"{i:04d}" for i in range(5000)]
    result, scores, tiny = chosen(choices, "sum", max_batch_tokens=256)
    inner = {c[:end] for c in choices for end in range(1, 4)}
    computed = sum(len(row.token_ids) for plan in tiny.canary.plans for row in plan.rows)
    assert computed == len(PROMPT) + len(inner)
    assert tiny.canary.forwards <= math.ceil(computed / 256) + 1
    for i in (0, 1, 999, 2500, 4999):
        assert scores[i].logprobs == pytest.approx(plain.continuation(PROMPT.encode(), choices[i].encode()), abs=1e-3)
    assert result.value == choices[max(range(5000), key=lambda i: scores[i].score)]
    assert tiny.canary.found == []


def test_select_after_nothing_begins_with_the_bos_and_is_refused_where_there_is_none(chosen, plain, open_tiny):
    """Below the language the choices can be scored even so: the first token has no distribution and counts nothing."""
    with pytest.raises(RunError, match="append some text before the call"):
        chosen(["ab", "b"], "sum", prompt="")
    scores = open_tiny().engine.score((), [list(b"ab"), list(b"b")]).logprobs
    assert scores[0] == pytest.approx([0.0, *plain.continuation(b"a", b"b")], abs=1e-3)
    assert scores[1] == (0.0,)


def test_select_is_bitwise_the_same_cold_and_warm(open_tiny):
    tiny = open_tiny(batch_invariant=True)
    ids = [list(c.encode()) for c in CHOICES]
    prompt = list(PROMPT.encode())
    cold = tiny.engine.score(prompt, ids, unconditional=True)
    for cached in range(1, len(prompt) + 1):
        tiny.engine.flush()
        tiny.engine.score(prompt[:cached], [[1]])
        warm = tiny.engine.score(prompt, ids, unconditional=True)
        assert (warm.logprobs, warm.unconditional) == (cold.logprobs, cold.unconditional)
    alone = [tiny.engine.score(prompt, [path]).logprobs[0] for path in ids]
    assert tuple(alone) == cold.logprobs, "the trie and each choice alone"
