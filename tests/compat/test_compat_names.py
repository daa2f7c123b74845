"""SGLang's names and parameters are all there, in its order."""

from __future__ import annotations

import inspect

import pytest

import sglang_dsl.sglang as sgl
from sglang_dsl.testing import mock

NAMES = [
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "image",
    "video",
    "system",
    "user",
    "assistant",
    "system_begin",
    "system_end",
    "user_begin",
    "user_end",
    "assistant_begin",
    "assistant_end",
    "separate_reasoning",
    "set_default_backend",
    "flush_cache",
    "get_server_info",
    "Runtime",
    "RuntimeEndpoint",
    "OpenAI",
    "Anthropic",
    "LiteLLM",
    "VertexAI",
    "Crusoe",
    "Engine",
    "ServerArgs",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
]
GEN = [
    "name",
    "max_tokens",
    "min_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "dtype",
    "choices",
    "choices_method",
    "regex",
    "json_schema",
]
STATE = [
    "system",
    "user",
    "assistant",
    "var_scope",
    "fork",
    "copy",
    "text",
    "messages",
    "sync",
    "error",
    "text_iter",
    "text_async_iter",
    "get_var",
    "set_var",
    "get_meta_info",
    "ret_value",
    "__getitem__",
    "__setitem__",
    "__contains__",
    "__iadd__",
]


@pytest.mark.parametrize("name", NAMES)
def test_name_is_there(name: str) -> None:
    assert hasattr(sgl, name)


def test_gen_has_the_23_parameters_in_order() -> None:
    assert list(inspect.signature(sgl.gen).parameters) == GEN


@pytest.mark.parametrize("name", STATE)
def test_state_has_the_method(name: str) -> None:
    assert hasattr(sgl.ProgramState, name)


@pytest.mark.parametrize("method", ["run", "run_batch", "bind", "trace", "cache"])
def test_function_has_the_method(method: str) -> None:
    assert callable(getattr(sgl.SglFunction, method))


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        (sgl.token_length_normalized, "long one"),  # -2.5 over two tokens beats -2.0 over one
        (sgl.greedy_token_selection, "short"),  # the first token decides
    ],
    ids=["length", "greedy"],
)
def test_choice_methods_choose_by_their_rule(method: str, winner: str) -> None:
    @sgl.function
    def p(s):
        s += "Q: " + sgl.select("a", choices=["short", "long one"], choices_method=method)

    scores = {"a": {"short": [-2.0], "long one": [-2.25, -0.25]}}
    state = p.run(backend=mock(scores=scores))
    assert state["a"] == winner
    assert state.get_meta_info("a")["input_token_logprobs"][1][1][0] == -0.25


def test_unconditional_choice_is_the_one_that_the_prompt_made_likelier() -> None:
    @sgl.function
    def p(s, method):
        s += "Capital of Norway: "
        s += sgl.select("a", choices=["Oslo", "Paris"], choices_method=method)

    def likely(context: str, token: str) -> float:
        after_prompt = {"Oslo": -2.0, "Paris": -1.5}
        alone = {"Oslo": -9.0, "Paris": -2.0}
        return (after_prompt if "Norway" in context else alone).get(token, -1.0)

    backend = mock(language_model=likely)
    methods = (sgl.token_length_normalized, sgl.unconditional_likelihood_normalized)
    assert [p.run(method=method, backend=backend)["a"] for method in methods] == ["Paris", "Oslo"]
