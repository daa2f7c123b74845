"""Who is admitted next, how much memory is set aside for it, and which requests can never be admitted.

A request rarely generates all it may. The new-token ratio is the share of it that is set aside: high at first, it decays while
all goes well; a retraction sets it to what was observed; when nothing runs it starts afresh.

A policy ranks a window of the waiting queue (the first `WINDOW` by arrival, so that ranking stays cheap and nobody is out of
sight for ever). Whoever has waited longer than the aging limit goes first under every policy, oldest first.

Source: the ratio, its decay over 600 steps and the slack of 20 tokens are those of SGLang (srt/managers/schedule_policy.py, 0.5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol, TypeAlias

from ...errors import CapacityError, ContextLengthError, SpecError
from ..cache.node import TreeNode
from ..cache.tree import RadixTree
from .request import Request, ScoreRequest
from .sequence import Sequence
from .step import PolicyName, WorkerFacts

INITIAL_RATIO = 0.7
LOWEST_RATIO = 0.1
DECAY_STEPS = 600
RETRACT_SLACK_TOKENS = 20  # per sequence, that a retraction leaves room for
MOST_NEW_TOKENS = 4096  # reserved per sequence, whatever it may generate


class NewTokenRatio:
    """The share of possible new tokens that is reserved. Owned by the Scheduler."""

    def __init__(self) -> None:
        self.value = INITIAL_RATIO

    def decay(self) -> None:
        """A decode step went well."""
        self.value = max(LOWEST_RATIO, self.value - (INITIAL_RATIO - LOWEST_RATIO) / DECAY_STEPS)

    def retracted(self, running: Iterable[Sequence]) -> None:
        """Memory ran out with these running: learn from what they generated."""
        generated = most = 0
        for seq in running:
            generated += seq.generated + RETRACT_SLACK_TOKENS
            most += seq.generated + seq.max_new
        self.value = min(1.0, max(self.value, generated / (most + 1)))


def reserved_pages(seq: Sequence, ratio: float, page_size: int) -> int:
    """Pages `seq` will still take beyond those it holds: the rest of its prompt, its reserved output, one for rounding."""
    tokens = len(seq.tokens) + int(min(seq.max_new, MOST_NEW_TOKENS) * ratio)
    if seq.task is not None:
        tokens = max(tokens, seq.task.longest_tokens + page_size)
    return max(0, -(-tokens // page_size) + 1 - len(seq.pages))


def refuse_impossible(request: Request, facts: WorkerFacts) -> None:
    """Raise if this request could not run even alone.

    Raises:
        SpecError: there is nothing to continue, or nothing to score.
        ContextLengthError, CapacityError: it is too long for the model or for the pool, with the numbers.
    """
    prompt, size = len(request.prompt_ids), facts.page_size
    if isinstance(request, ScoreRequest):
        if not request.continuations:
            raise SpecError("there is nothing to score", hint="give at least one continuation")
        # On one path of the trie every token may begin an edge, and every edge has a page of its own. The K/V of the last
        # token is never needed.
        new = max(map(len, request.continuations))
        pages = max(-(-prompt // size) + max(new - 1, 0), 1)
    else:
        if not prompt:
            raise SpecError("the prompt is empty", hint="begin with at least one token (BOS, if the model has one)")
        new = request.sampling.most_tokens
        pages = -(-(prompt + new - 1) // size)
    if prompt + new > facts.context_tokens:
        raise ContextLengthError(
            f"{prompt} prompt tokens and {new} new ones are more than the context of {facts.context_tokens}",
            prompt_tokens=prompt,
            max_tokens=new,
            context_tokens=facts.context_tokens,
            hint="shorten the prompt or lower max_tokens",
        )
    if pages > facts.num_pages:
        raise CapacityError(
            f"{prompt} prompt tokens and {new} new ones need {pages} pages of {size} tokens; "
            f"the pool has {facts.num_pages}",
            hint="give the engine more KV memory, shorten the prompt or lower max_tokens",
        )


WINDOW = 128

Rank: TypeAlias = tuple[float | tuple[tuple[int, int], ...], ...]


class Policy(Protocol):
    """Ranks waiting sequences: smaller is admitted earlier."""

    def __call__(self, window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
        """Rank by seq_id."""


def fcfs(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """In order of arrival."""
    return {seq.seq_id: (seq.arrival,) for seq in window}


def longest_prefix(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """Higher priority, then most cached tokens, then the longest path that waits for it."""
    for seq in window:
        seq.matched = _found(seq, tree)[1]
    return {
        seq.seq_id: (-seq.request.priority, -seq.matched, -seq.request.critical_tokens, seq.arrival) for seq in window
    }


def depth_first(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """Subtree by subtree, that with most waiting requests first, so that a shared prefix is used up while it is there."""
    paths: dict[int, list[TreeNode]] = {}
    for seq in window:
        node, seq.matched = _found(seq, tree)
        paths[seq.seq_id] = node.path() if node is not None and seq.matched else []
    weight = Counter(node.serial for path in paths.values() for node in path)
    return {
        seq.seq_id: (
            -seq.request.priority,
            (*((-weight[node.serial], node.serial) for node in paths[seq.seq_id]), (0, 0)),
            seq.arrival,
        )
        for seq in window
    }


def _found(seq: Sequence, tree: RadixTree) -> tuple[TreeNode | None, int]:
    return tree.peek(seq.namespace, seq.key, seq.match_limit, ids=seq.request.prompt_ids)


def priority(window: list[Sequence], tree: RadixTree) -> dict[int, Rank]:
    """Higher priority, then the nearer deadline, then the longest path that waits for it."""
    return {
        seq.seq_id: (
            -seq.request.priority,
            math.inf if seq.request.deadline_s is None else seq.request.deadline_s,
            -seq.request.critical_tokens,
            seq.arrival,
        )
        for seq in window
    }


POLICIES: Mapping[PolicyName, Policy] = {
    "fcfs": fcfs,
    "longest_prefix": longest_prefix,
    "depth_first": depth_first,
    "priority": priority,
}


def ordered(
    policy: Policy, waiting: Mapping[int, Sequence], tree: RadixTree, now: float, aging_s: float
) -> list[Sequence]:
    """The window of the queue in the order of admission."""
    window = list(islice(waiting.values(), WINDOW))
    ranks = policy(window, tree)
    aged = [seq for seq in window if now - seq.arrived_s > aging_s]
    late = {seq.seq_id for seq in aged}
    return aged + sorted((s for s in window if s.seq_id not in late), key=lambda s: ranks[s.seq_id])
