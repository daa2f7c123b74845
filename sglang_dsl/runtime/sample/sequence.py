"""What the sampler remembers of one sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import SamplingError
from ...ir.specs import SamplingSpec
from .masks import TokenMatcher

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
