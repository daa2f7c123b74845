"""Leases of the prompts of forks: taken when the parent's text is known, counted down as branches make their first calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..cache.namespace import Namespace
from ..schedule.request import LeaseId, Request
from .entry import Claim, Entry
from .target import Target

Post = Callable[[Callable[[], None]], None]


class Leases:
    """All leases of one run. Owner: the run's Machine.

    Every branch has a claim to its fork's lease; each claim is spent by one call, or given back, exactly once.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._forks: list[Entry] = []

    def take(self, fork: Entry, target: Target, namespace: Namespace, prompt_ids: Sequence[int], children: int) -> None:
        """Keep a fork's prompt until `children` branches have spent their claims.

        It covers what the branch around the fork was promised, too, so that claim is given back.
        """
        fork.lease = (target, target.lease(prompt_ids, namespace, children))
        self._forks.append(fork)
        if fork.claim is not None:
            self._give_back(fork.claim)
        for claim in fork.claims.values():
            self.settle(claim)

    def claim(self, fork: Entry, branch: int) -> Claim:
        """The claim of one branch."""
        return fork.claims.setdefault(branch, Claim(fork))

    def spend(self, entry: Entry, target: Target) -> LeaseId | None:
        """The lease a call of `entry` to `target` has to name, if it is its branch's first; else None."""
        claim = entry.claim
        if claim is None or claim.spent or claim.fork.lease is None or claim.fork.lease[0] is not target:
            return None
        claim.spent = True
        return claim.fork.lease[1]

    def settle(self, claim: Claim) -> None:
        """Give a claim back once nothing can spend it any more."""
        if claim.closed and claim.spenders == 0:
            self._give_back(claim)

    def unspend(self, target: Target, request: Request) -> None:
        """A request that named a lease is not sent after all."""
        if request.lease is not None:
            self._post(partial(target.release, request.lease, 1))

    def close(self, fork: Entry, branches: Iterable[int]) -> None:
        """No more nodes come in these branches."""
        for branch in branches:
            claim = self.claim(fork, branch)
            claim.closed = True
            self.settle(claim)

    def close_all(self) -> None:
        """No more nodes come at all."""
        for fork in self._forks:
            self.close(fork, range(getattr(fork.node, "size", 0)))

    def end(self) -> None:
        """No more calls come: end whatever lease is left."""
        for fork in self._forks:
            if fork.lease is not None:
                target, lease = fork.lease
                self._post(partial(target.release, lease))
        self._forks.clear()

    def _give_back(self, claim: Claim) -> None:
        if claim.spent or claim.fork.lease is None:
            return
        claim.spent = True
        target, lease = claim.fork.lease
        self._post(partial(target.release, lease, 1))
