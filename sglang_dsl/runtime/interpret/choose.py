"""Which choice of a select wins, by four methods. Ties go to the choice that stands first.

    mean            average log-probability per token: long, predictable choices are not punished
    sum             total log-probability: the probability of the text itself
    greedy          token by token the most likely one; a choice that ends where a longer one goes on competes with the
                    end of the text, and drops out where the longer one's next token is the most likely (> 1/2)
    unconditional   average gain in log-probability over the same choice without the prompt

Source of mean and unconditional: token-length normalisation and unconditional likelihood normalisation as named in
SGLang's `lang/choices.py`; without its skipping of zeros and its padding by means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import RunError, SpecError
from ...ir.execution import ChoiceScore
from ...ir.specs import SelectMethod
from ..schedule.request import ScoreResult


def distinct(choices: Sequence[str]) -> tuple[str, ...]:
    """The choices, each once, at its first place.

    Raises:
        SpecError: there is none, or one is empty.
    """
    if not choices:
        raise SpecError("a select without choices", hint="give at least one choice")
    if "" in choices:
        raise SpecError(
            f"choice {list(choices).index('')} of the select is empty: an empty text has no tokens to compare",
            hint="leave it out, or give it a word of its own such as 'none'",
        )
    return tuple(dict.fromkeys(choices))


def scored(
    choices: Sequence[str], ids: Sequence[tuple[int, ...]], result: ScoreResult, method: SelectMethod
) -> tuple[ChoiceScore, ...]:
    """Each choice with its score, in order. Scores are comparable within one select only."""
    if any(math.isnan(logprob) for path in result.logprobs for logprob in path):
        raise RunError("the model scored a choice as NaN", hint="check the model's weights and dtype")
    unconditional = result.unconditional or ((),) * len(choices)
    scores = (
        _greedy(ids, result.logprobs)
        if method == "greedy"
        else [_score(path, free, method) for path, free in zip(result.logprobs, unconditional, strict=True)]
    )
    return tuple(
        ChoiceScore(text=text, score=score, token_ids=path_ids, logprobs=tuple(path), unconditional=tuple(free))
        for text, score, path_ids, path, free in zip(choices, scores, ids, result.logprobs, unconditional, strict=True)
    )


def best(scores: Sequence[ChoiceScore]) -> int:
    """Index of the winner."""
    return max(range(len(scores)), key=lambda i: (scores[i].score, -i))


def _score(path: Sequence[float], free: Sequence[float], method: SelectMethod) -> float:
    if method == "sum":
        return math.fsum(path)
    if method == "mean":
        return math.fsum(path) / len(path)
    return math.fsum(p - u for p, u in zip(path, free, strict=True)) / len(path)


def _greedy(ids: Sequence[tuple[int, ...]], logprobs: Sequence[Sequence[float]]) -> list[float]:
    """How many tokens each choice survived, and among survivors of the same length the last token's log-probability
    as a fraction, so that the winner has the highest score.
    """
    survived = [0] * len(ids)
    alive = list(range(len(ids)))
    depth = 0
    while alive:
        longer = [i for i in alive if len(ids[i]) > depth]
        if not longer:
            break
        top = max(logprobs[i][depth] for i in longer)
        ended = [i for i in alive if len(ids[i]) == depth]
        if ended and top <= math.log(0.5):
            alive = ended
            break
        winner_id = next(ids[i][depth] for i in longer if logprobs[i][depth] == top)
        alive = [i for i in longer if ids[i][depth] == winner_id]
        depth += 1
        for i in alive:
            survived[i] = depth
    return [float(survived[i]) + (0.5 if i in alive else 0.0) for i in range(len(ids))]
