"""What a result means: from a finished text to a value that is checked, and from the scores of choices to the one that wins.

Which choice of a select wins, by four methods. Ties go to the choice that stands first.

    mean            average log-probability per token: long, predictable choices are not punished
    sum             total log-probability: the probability of the text itself
    greedy          token by token the most likely one; a choice that ends where a longer one goes on competes with the
                    end of the text, and drops out where the longer one's next token is the most likely (> 1/2)
    unconditional   average gain in log-probability over the same choice without the prompt

Source of mean and unconditional: token-length normalisation and unconditional likelihood normalisation as named in
SGLang's `lang/choices.py`; without its skipping of zeros and its padding by means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from inspect import isawaitable
from typing import Any, NoReturn

from ...errors import InvalidValueError, RunError, SpecError, TruncatedError
from ...ir.nodes import Gen
from ...ir.outcome import Accepted, ChoiceScore
from ...ir.specs import ConstraintSpec, SelectMethod, shown
from ..constrain.compile import compile_constraint
from ..constrain.schema_validator import validator_of_text
from ..schedule.request import ScoreResult
from .user_code import printable

SHOWN_CHARACTERS = 80  # of an output, in an error: enough to recognise it, too little to flood a log
QUICK_CHARACTERS = 4096  # of an output that is checked where it arrives: a millisecond at most


def value_of(gen: Gen, text: str, *, cut: bool, tokens: int, stop: str | int | None = None) -> Any:
    """The value of a gen's text.

    Args:
        cut: the output ended by length or by a stop. Under a constraint it is complete only if it is a valid value anyway;
            with `partial_ok` the partial text is the value.
        stop: the stop that ended it, if one did.

    Raises:
        TruncatedError: constrained output was cut off.
        InvalidValueError: the text is not what was asked for.
    """
    if not cut or (gen.constraint is None and gen.decode == "text"):
        return _checked(gen, text)
    try:
        return _checked(gen, text)
    except InvalidValueError:
        if gen.partial_ok:
            return text
        by = "" if stop is None else f" by its stop {shown(stop)}"
        more = (
            f"raise max_tokens (now {gen.sampling.max_tokens})"
            if stop is None
            else "leave the stop out: a constraint ends by itself"
        )
        raise TruncatedError(
            f"the output of {gen.name or gen.id!r} was cut off{by} after {tokens} tokens and is not complete",
            partial=text,
            tokens=tokens,
            hint=f"{more}, or pass partial_ok=True to get the partial text",
            origin=gen.origin,
        ) from None


def prepare(constraint: ConstraintSpec | None) -> None:
    """Build on the caller's thread what is needed to check a value, once per constraint.

    Raises:
        ConstraintError: the schema is not one.
    """
    if constraint is None or constraint.kind == "lark":
        return
    compile_constraint(constraint)
    if constraint.kind == "json_schema":
        validator_of_text(constraint.text)


def checked_at_once(gen: Gen, text: str) -> bool:
    """Whether `value_of` takes no time to speak of: the text is short, and nothing but look-ups are needed to check it, as
    where the constraint's automaton has just produced it. All else is left to a thread that may take its time.
    """
    constraint = gen.constraint
    if constraint is None:
        return gen.decode == "text" or len(text) <= QUICK_CHARACTERS
    if len(text) > QUICK_CHARACTERS:
        return False
    match constraint.kind:
        case "regex":
            return compile_constraint(constraint).known(text) is not None
        case "json_schema":
            return compile_constraint(constraint).known(text) is True
    return True


def judged(
    gen: Gen,
    text: str,
    validator: Callable[[Any], Any] | None,
    *,
    cut: bool,
    tokens: int,
    stop: str | int | None = None,
) -> Any:
    """(the value of a gen's text (see `value_of`), what the program's own validator made of it, if it says), or an awaitable of
    that. The validator refuses by returning False or raising ValueError, or by what it gives to be awaited doing so.

    Raises:
        TruncatedError, InvalidValueError: see `value_of`; or it was refused, and the message is the validator's own.
    """
    value = value_of(gen, text, cut=cut, tokens=tokens, stop=stop)
    if validator is None:
        return value, None
    with _refusing(gen, text):
        verdict = validator(value)
    return _judged_later(gen, text, value, verdict) if isawaitable(verdict) else _accepted(gen, text, value, verdict)


async def _judged_later(gen: Gen, text: str, value: Any, verdict: Awaitable[Any]) -> tuple[Any, Accepted | None]:
    with _refusing(gen, text):
        found = await verdict
    return _accepted(gen, text, value, found)


def _accepted(gen: Gen, text: str, value: Any, verdict: Any) -> tuple[Any, Accepted | None]:
    if verdict is False:
        _refuse(gen, text, "its validator returned False")
    return value, verdict if isinstance(verdict, Accepted) else None


@contextmanager
def _refusing(gen: Gen, text: str) -> Iterator[None]:
    """What a validator raises, as a refusal. Output that another run of the validator's own refused is no refusal here."""
    try:
        yield
    except ValueError as error:
        _refuse(gen, text, printable(str(error)) or type(error).__name__)
    except InvalidValueError as error:
        raise RunError(
            f"the validator of {gen.name or gen.id!r} raised InvalidValueError: {error.what}", origin=gen.origin
        ) from error


def _checked(gen: Gen, text: str) -> Any:
    value = _parsed(gen, text) if gen.decode == "json" else text
    constraint = gen.constraint
    if constraint is None:
        return value
    match constraint.kind:
        case "json_schema":
            if not compile_constraint(constraint).known(text):
                _check_schema(gen, value if gen.decode == "json" else _parsed(gen, text), text, constraint)
        case "regex":
            if not compile_constraint(constraint).matches(text):
                _refuse(gen, text, f"it does not match {_short(constraint.text)}")
        case "choices":
            if text not in _choices(constraint.text):
                _refuse(gen, text, "it is none of the choices")
    return value


@lru_cache(maxsize=256)
def _choices(listed: str) -> frozenset[str]:
    return frozenset(json.loads(listed))


def _parsed(gen: Gen, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError as error:
        _refuse(gen, text, f"it is not JSON: {error}")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _check_schema(gen: Gen, value: Any, text: str, constraint: ConstraintSpec) -> None:
    for error in validator_of_text(constraint.text).iter_errors(value):
        _refuse(gen, text, f"at {error.json_path}: {_short(error.message)}")


def _refuse(gen: Gen, text: str, reason: str) -> NoReturn:
    raise InvalidValueError(
        f"the output of {gen.name or gen.id!r} was refused: {reason}",
        text=text,
        hint="loosen the type, or allow more retries",
        origin=gen.origin,
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


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
