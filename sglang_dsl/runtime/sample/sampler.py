"""From the logits of a step to one token per sequence, each row for itself.

A row goes through the mask of its constraint, penalties, temperature, top-k, top-p and min-p (ties always by lowest id), and one token
is drawn by the inverse of the cumulative sum with randomness that depends on nothing but a seed and a position. Log-probabilities are
those of the model's own logits, before masks, penalties and temperature; apart from them stands the share of a token among those that
its constraint allows. Matchers are in the worker, one per sequence.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ...errors import DslError, SamplingError
from ...ir.execution import TokenScore
from ...ir.specs import ConstraintSpec, SamplingSpec


class Matcher(Protocol):
    """Where one sequence stands in its constraint."""

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here."""

    def fork(self) -> Self:
        """An independent copy at the same place."""

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""


class TokenMatcher(Matcher, Protocol):
    """A matcher that can say which tokens may come next."""

    def fill_mask(self, row: Tensor) -> None:
        """Write into row, int32 [ceil(V / 32)]: bit i % 32 of word i // 32 is set if token i is allowed. Stop tokens are allowed
        exactly where the output may end.
        """


class TokenConstraint(Protocol):
    """A constraint over one vocabulary, shared by all sequences that ask for it."""

    def matcher(self) -> TokenMatcher:
        """A new matcher at the beginning."""


class Compilation(Protocol):
    """A future of a compiled constraint; raises ConstraintError."""

    def result(self) -> TokenConstraint:
        """Wait for it."""

    def exception(self) -> BaseException | None:
        """Wait for its error."""

    def add_done_callback(self, callback: Callable[[Future[Any]], object]) -> None:
        """Call when it is there."""


class ConstraintCompiler(Protocol):
    """Compiles constraints off the caller's thread; the same one only once."""

    def compile(self, spec: ConstraintSpec) -> Compilation:
        """Begin, or take what was begun for an equal spec."""

    def close(self) -> None:
        """End its threads. Idempotent."""


def empty_masks(rows: int, vocab_size: int) -> Tensor:
    """Bits for `rows` rows, int32 [rows, ceil(V / 32)], all allowed."""
    return torch.full((rows, -(-vocab_size // 32)), -1, dtype=torch.int32)


def apply_masks(logits: Tensor, masks: Tensor, rows: Sequence[int]) -> None:
    """Set what the bits [n, ceil(V / 32)] forbid to -inf in rows [n] of logits [N, V], in place."""
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    forbidden = (masks.to(logits.device).unsqueeze(-1) >> shifts) & 1 == 0
    for row, mask in zip(rows, forbidden.flatten(1)[:, : logits.shape[1]], strict=True):
        logits[row].masked_fill_(mask, -torch.inf)


def largest(row: Tensor, k: int) -> Tensor:
    """Ids of the k largest entries of row [V], largest first, equal ones by ascending id. k is at most V.

    `torch.topk` alone leaves the order among equals, and which of them are in, undefined.
    """
    threshold = torch.topk(row, k, sorted=False).values.min()
    candidates = torch.nonzero(row >= threshold).squeeze(1)
    order = torch.sort(row[candidates], descending=True, stable=True).indices
    return candidates[order[:k]]


GREEDY_BELOW = 1e-5  # a smaller temperature is greedy: what it leaves to other tokens is below float32 resolution
_NUCLEUS_GUESS = 256  # most nuclei are smaller; a larger one is found by trying again with more


def is_greedy(spec: SamplingSpec) -> bool:
    """Whether the most likely token is taken, ties by lowest id."""
    return spec.temperature < GREEDY_BELOW or spec.top_k == 1 or spec.top_p == 0 or spec.min_p == 1


def draw(row: Tensor, spec: SamplingSpec, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the distribution left by `spec`. row [V]: finite or -inf, not all -inf.

    Weights are float64 and relative to the largest, so no temperature overflows. Each filter sees the distribution the one
    before it left. Kept tokens lie in order of id.
    """
    peak = row.max()
    weights = torch.exp((row - peak).double() / spec.temperature)
    ids = _filtered(row, weights, spec)
    kept = weights if ids is None else weights[ids]
    total = kept.cumsum(0)
    place = int(torch.searchsorted(total, total[-1] * uniform, right=True))
    place = min(place, int(torch.nonzero(kept)[-1]))  # rounding must not step past the last possible token
    return place if ids is None else int(ids[place])


def _filtered(row: Tensor, weights: Tensor, spec: SamplingSpec) -> Tensor | None:
    """Ids that are left, ascending; None if all are."""
    ids: Tensor | None = None
    if 0 < spec.top_k < row.numel():
        ids = largest(row, spec.top_k)
    if spec.top_p < 1:
        ids = _nucleus(row, weights, ids, spec.top_p)
    if spec.min_p > 0:
        ids = torch.arange(row.numel(), device=row.device) if ids is None else ids
        ids = ids[weights[ids] >= spec.min_p]
    return None if ids is None else ids.sort().values


def _nucleus(row: Tensor, weights: Tensor, ids: Tensor | None, top_p: float) -> Tensor:
    """The fewest most likely tokens whose weights reach `top_p` of the total; always at least one."""
    goal = top_p * (weights.sum() if ids is None else weights[ids].sum())
    guess = _NUCLEUS_GUESS
    while True:
        ordered = largest(row, min(guess, row.numel())) if ids is None else ids
        before = weights[ordered].cumsum(0) - weights[ordered]
        count = int((before < goal).sum())
        if ids is not None or count < ordered.numel() or guess >= row.numel():
            return ordered[: max(count, 1)]
        guess *= 16


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for generated token `index` of a sequence with this seed.

    Counter-based, so neither batch-mates nor their order, retraction or a change of batch size can move it. BLAKE2b of both
    as 64-bit words; the top 53 bits are the fraction of a double.
    """
    word = hashlib.blake2b(struct.pack("<QQ", seed % 2**64, index), digest_size=8).digest()
    return float((int.from_bytes(word, "little") >> 11) * 2.0**-53)


BAN = -100.0  # a bias this low bans the token


class SampledSequence:
    """One open sequence: its options, seed, token history and matcher. Owned by the worker that opened it.

    One that comes back after retraction gets what it had generated through `accept` again.

    History counts ids, wherever they came from: the prompt (what was generated above a fork is part of it) and what the
    sequence generated itself.

    Raises:
        SamplingError: an option names a token outside the vocabulary.
    """

    def __init__(
        self,
        spec: SamplingSpec,
        seed: int,
        prompt_ids: Sequence[int],
        *,
        vocab_size: int,
        end_ids: frozenset[int],
        matcher: TokenMatcher | None = None,
    ) -> None:
        for token_id in (*(i for i, _ in spec.logit_bias), *spec.stop_token_ids):
            if token_id >= vocab_size:
                raise SamplingError(
                    f"token id {token_id} is outside the vocabulary of {vocab_size}",
                    hint="ids in logit_bias and stop_token_ids are below the model's vocabulary size",
                )
        self.spec = spec
        self.seed = seed
        self.matcher = matcher
        self._prompt = torch.tensor(sorted(set(prompt_ids)) if spec.repetition_penalty != 1 else [], dtype=torch.long)
        self._output = Counter[int]()
        self._banned = torch.tensor([i for i, bias in spec.logit_bias if bias <= BAN], dtype=torch.long)
        self._biased = torch.tensor([i for i, bias in spec.logit_bias if bias > BAN], dtype=torch.long)
        self._bias = torch.tensor([bias for _, bias in spec.logit_bias if bias > BAN])
        self._end_ids = end_ids | set(spec.stop_token_ids)
        banned_early = self._end_ids if not spec.ignore_eos else set(spec.stop_token_ids)
        self._ends = torch.tensor(sorted(banned_early), dtype=torch.long)

    @property
    def changes_logits(self) -> bool:
        """Whether `adjust` or `ban` can do anything."""
        spec = self.spec
        penalised = spec.repetition_penalty != 1 or spec.frequency_penalty or spec.presence_penalty
        return bool(penalised or spec.logit_bias or spec.min_tokens)

    def adjust(self, row: Tensor) -> None:
        """Apply penalties, then biases, to logits [V] in place, once.

        repetition (prompt and output): positive logits are divided by it, negative ones multiplied (Source: CTRL, arXiv
        1909.05858, as transformers has it). frequency and presence (output only) are subtracted: count * frequency, and
        presence if count > 0 (Source: OpenAI API reference).
        """
        output = torch.tensor(sorted(self._output), dtype=torch.long, device=row.device)
        if self.spec.repetition_penalty != 1:
            seen = torch.cat([self._prompt.to(row.device), output]).unique()  # type: ignore[no-untyped-call]
            values = row[seen]
            row[seen] = torch.where(
                values > 0, values / self.spec.repetition_penalty, values * self.spec.repetition_penalty
            )
        if output.numel() and (self.spec.frequency_penalty or self.spec.presence_penalty):
            counts = torch.tensor([self._output[i] for i in sorted(self._output)], dtype=row.dtype, device=row.device)
            row[output] -= counts * self.spec.frequency_penalty + self.spec.presence_penalty
        if self._biased.numel():
            row[self._biased.to(row.device)] += self._bias.to(row.device)

    def ban(self, row: Tensor, generated: int) -> None:
        """Forbid banned tokens, and every end before `min_tokens`, in logits [V] in place.

        A ban yields where nothing else is left: a constraint that allows only banned tokens is kept.
        """
        banned = torch.cat([self._banned, self._ends]) if generated < self.spec.min_tokens else self._banned
        if not banned.numel():
            return
        kept = row[banned]
        row[banned] = -torch.inf
        if bool(row.max() == -torch.inf):
            row[banned] = kept

    def accept(self, token_id: int) -> bool:
        """Take a sampled token into the history. True if the constraint is complete and nothing may follow.

        Raises:
            SamplingError: the matcher refuses a token its mask allowed (a fault of this project).
        """
        self._output[token_id] += 1
        if self.matcher is None:
            return False
        if self.matcher.accept(token_id):
            return self.matcher.must_end
        if self.matcher.may_end and token_id in self._end_ids:
            return True
        raise SamplingError(f"the constraint's mask allowed token {token_id}, its matcher does not")


class Draw(NamedTuple):
    """One sequence to sample: its place among the logits' rows, and how many tokens it has generated so far."""

    row: int
    sequence: SampledSequence
    generated: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | Exception]:
    """A token per draw from logits [N, V], which are not changed. Several draws may share a row.

    A row that leaves no token, or whose matcher fails, gets its error; the others are not touched by it.
    """
    values = logits.index_select(0, torch.tensor([d.row for d in draws], device=logits.device)).float()
    for i, d in enumerate(draws):
        if d.sequence.changes_logits:
            d.sequence.adjust(values[i])
    failed = _mask(values, draws)
    for i, d in enumerate(draws):
        if d.sequence.changes_logits:
            d.sequence.ban(values[i], d.generated)
    chosen = _choose(values, draws)
    return [failed.get(i, token) for i, token in enumerate(chosen)]


def _mask(values: Tensor, draws: Sequence[Draw]) -> dict[int, Exception]:
    """Apply the constraints' masks; the matchers that failed, by place."""
    constrained = [(i, d.sequence.matcher) for i, d in enumerate(draws) if d.sequence.matcher is not None]
    failed: dict[int, Exception] = {}
    masks = empty_masks(len(constrained), values.shape[1])
    for row, (i, matcher) in enumerate(constrained):
        try:
            matcher.fill_mask(masks[row])
        except (DslError, RuntimeError, ValueError) as error:
            failed[i] = error
    if constrained:
        apply_masks(values, masks, [i for i, _ in constrained])
    return failed


def _choose(values: Tensor, draws: Sequence[Draw]) -> list[int | Exception]:
    peaks, best = (t.tolist() for t in values.max(dim=-1))
    chosen: list[int | Exception] = []
    for i, d in enumerate(draws):
        spec = d.sequence.spec
        if peaks[i] != peaks[i]:
            chosen.append(SamplingError("the model's logits are not numbers (NaN)", hint="try dtype='float32'"))
        elif peaks[i] == -torch.inf:
            chosen.append(SamplingError("every token is masked", hint="loosen the constraint or the bias"))
        elif is_greedy(spec) or peaks[i] == torch.inf:
            chosen.append(best[i])
        else:
            chosen.append(draw(values[i], spec, uniform(d.sequence.seed, d.generated)))
    return chosen


def token_score(
    logits: Tensor,
    token_id: int,
    top: int,
    token_bytes: Callable[[int], bytes],
    matcher: TokenMatcher | None = None,
) -> TokenScore:
    """The natural log-probability of a token under logits [V], with the `top` best alternatives, best first.

    matcher: the sequence's, before it has accepted the token: its share among what is allowed is told apart.
    """
    row = torch.log_softmax(logits.float(), dim=-1)
    best = tuple((i, lp, token_bytes(i)) for i, lp in _best(row, top))
    return TokenScore(
        token_id=token_id,
        logprob=float(row[token_id]),
        token_bytes=token_bytes(token_id),
        top=best,
        constrained_logprob=None if matcher is None else _among_allowed(row, token_id, matcher),
    )


def logprobs(
    logits: Tensor, token_ids: Sequence[int], top: int
) -> tuple[tuple[float, ...], tuple[tuple[int, float], ...]]:
    """Log-probabilities of `token_ids` under logits [V], and the `top` best (id, log-probability), best first."""
    row = torch.log_softmax(logits.float(), dim=-1)
    chosen = tuple(row[torch.tensor(list(token_ids), dtype=torch.long, device=row.device)].tolist())
    return chosen, tuple(_best(row, top))


def _among_allowed(row: Tensor, token_id: int, matcher: TokenMatcher) -> float:
    values, masks = row.clone().unsqueeze(0), empty_masks(1, row.numel())
    matcher.fill_mask(masks[0])
    apply_masks(values, masks, [0])
    return float(torch.log_softmax(values[0], dim=-1)[token_id])


def _best(row: Tensor, top: int) -> list[tuple[int, float]]:
    if top < 1:
        return []
    ids = largest(row, min(top, row.numel()))
    return list(zip(ids.tolist(), row[ids].tolist(), strict=True))
