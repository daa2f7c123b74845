"""A call's Meta under SGLang's keys."""

from __future__ import annotations

from typing import Any

from ...ir.execution import ChoiceScore, Meta, TokenScore


def meta_info(meta: Meta) -> dict[str, Any]:
    """Counts, finish reason, and log-probabilities as `[logprob, id, text]`."""
    info: dict[str, Any] = {
        "prompt_tokens": meta.prompt_tokens,
        "completion_tokens": meta.generated_tokens,
        "cached_tokens": meta.cached_tokens,
        "finish_reason": _finish_reason(meta),
    }
    if meta.token_scores:
        info["output_token_logprobs"] = [_score(score) for score in meta.token_scores]
        info["output_top_logprobs"] = [_top(score) for score in meta.token_scores]
    if meta.choices:
        info["normalized_prompt_logprobs"] = [choice.score for choice in meta.choices]
        info["input_token_logprobs"] = [_choice(choice) for choice in meta.choices]
    return info


def partial_info(call_id: str, pieces: int) -> dict[str, Any]:
    """What is known of a call while it writes: so many pieces of text have come. `meta_info` comes at its end."""
    return {"id": call_id, "completion_tokens": pieces, "finish_reason": None}


def _finish_reason(meta: Meta) -> dict[str, Any]:
    if meta.finish_reason == "length":
        return {"type": "length", "length": meta.generated_tokens}
    if meta.finish_reason == "cancelled":
        return {"type": "abort", "message": "cancelled"}
    return {"type": "stop", "matched": meta.matched}


def _score(score: TokenScore) -> list[Any]:
    return [score.logprob, score.token_id, score.token_bytes.decode("utf-8", "replace")]


def _top(score: TokenScore) -> list[list[Any]]:
    return [[logprob, token_id, text.decode("utf-8", "replace")] for token_id, logprob, text in score.top]


def _choice(choice: ChoiceScore) -> list[list[Any]]:
    return [[logprob, token_id, None] for token_id, logprob in zip(choice.token_ids, choice.logprobs, strict=True)]
