"""One request at work: its tokens, its page table and, if it scores continuations, the trie of these.

The continuations of a ScoreRequest form a token trie: each edge is computed once, each token is scored once. A trie node needs a
forward pass only if something follows it; the log-probabilities of the leaves come from the logits of their parents.

    prompt . -+- N e w -+- (end)          rows: [New] [York -> computed up to "Yor"] [Par...]
              |         +- Y o r k        points: at the prompt's last token for N and P, at N for e, ...
              +- P a r i s

Which of a sequence's pages are its own is drawn in `ownership.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens

from ...ir.outcome import TokenScore
from ..cache.keys import TokenIds, pack
from ..cache.node import Receipt
from .request import GenerateRequest, Logprobs, Phase, Request


class TrieNode:
    """One token on the path of at least one continuation. `logprob`: of this token after the path above it."""

    __slots__ = ("children", "logprob", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.children: dict[int, TrieNode] = {}
        self.logprob = 0.0

    def inner(self) -> list[TrieNode]:
        """Children that something follows."""
        return [child for child in self.children.values() if child.children]


class Edge:
    """A chain of trie nodes computed as one row, from position `start`. Its own pages begin with the page of `start`.

    after_prompt: whether its path begins with the request's prompt, so that `table` begins with the prompt's pages.
    band: the band of lengths of the sequences it is part of.
    """

    __slots__ = ("after_prompt", "band", "nodes", "open_children", "own_pages", "parent", "scored", "start", "table")

    def __init__(self, nodes: list[TrieNode], start: int, parent: Edge | None, band: int = 0) -> None:
        self.nodes = nodes
        self.band = band
        self.start = start
        self.parent = parent
        self.after_prompt: bool = parent.after_prompt if parent else start > 0
        self.own_pages: list[int] = []
        self.table: list[int] = []
        self.open_children = 0
        self.scored = False

    @property
    def end(self) -> int:
        """Position after the last."""
        return self.start + len(self.nodes)


class ScoreTask:
    """The work and the answer of one ScoreRequest after its prompt. Owned by its sequence.

    The unconditional scores are a second trie from position 0: below BOS, or without a root where there is no BOS (first
    tokens then count 0.0). A ScoreRequest with an empty prompt is scored in this way, too.

    What is scored is each continuation as a part of its whole sequence. Where a model computes long sequences otherwise than
    short ones (`band_of`), the continuations of each further band get a trie of their own, the prompt included.
    """

    def __init__(
        self,
        continuations: Tokens[Tokens[int]],
        *,
        prompt_ids: Tokens[int],
        unconditional: bool,
        bos_id: int | None,
        edge_tokens: int,
        band_of: Callable[[int], int] = lambda tokens: 0,
    ) -> None:
        bos = -1 if bos_id is None else bos_id
        self._continuations = continuations
        head = len(prompt_ids) or int(bos >= 0)
        by_band = _by_band(continuations, head, band_of)
        self.band = min(by_band, default=band_of(head))
        self.root = TrieNode(-1 if prompt_ids else bos)
        self._roots = {self.band: self.root}
        _grow(self.root, by_band.pop(self.band, ()))
        if prompt_ids:
            self._edges = _edges(self.root.inner(), len(prompt_ids), edge_tokens, self.band)
        else:
            self._edges = _free_edges(self.root, edge_tokens, self.band)
        for band, members in by_band.items():
            first, self._roots[band] = _chain(prompt_ids or [bos])
            _grow(self._roots[band], members)
            self._edges += _free_edges(first, edge_tokens, band)
        self._free_roots: dict[int, TrieNode] = {}
        for band, members in _by_band(continuations, int(bos >= 0), band_of).items() if unconditional else ():
            self._free_roots[band] = TrieNode(bos)
            _grow(self._free_roots[band], members)
            self._edges += _free_edges(self._free_roots[band], edge_tokens, band)
        self._band_of = band_of
        self._heads = head, int(bos >= 0)
        self.todo: list[Edge] = []
        self.next = 0
        self.restart()

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest path of edges that has to be in memory at a time, counted from position 0."""
        return max((edge.end for edge in self._edges), default=0)

    @property
    def done(self) -> bool:
        """Whether every edge has been computed."""
        return self.next == len(self.todo) and all(edge.scored for edge in self.todo)

    def live_edges(self) -> list[Edge]:
        """Edges that hold pages."""
        return [edge for edge in self.todo if edge.own_pages]

    def restart(self) -> None:
        """All pages are gone: compute again what is not scored, and what lies above it. Scores found so far stay."""
        needed: set[int] = set()
        for edge in reversed(self._edges):
            if not edge.scored or id(edge) in needed:
                needed.add(id(edge))
                needed.add(id(edge.parent))
        self.todo = [edge for edge in self._edges if id(edge) in needed]
        self.next = 0
        for edge in self.todo:
            edge.own_pages, edge.table, edge.open_children, edge.scored = [], [], 0, False
        for edge in self.todo:
            if edge.parent is not None:
                edge.parent.open_children += 1

    def commit(self, edge: Edge) -> list[int]:
        """`edge` has been computed. Returns pages that nothing below needs any more."""
        edge.scored = True
        gone: list[int] = []
        done: Edge | None = edge
        while done is not None and done.scored and done.open_children == 0:
            gone += done.own_pages
            done.own_pages, done.table = [], []
            done = done.parent
            if done is not None:
                done.open_children -= 1
        return gone

    def answer(self) -> tuple[Logprobs, Logprobs]:
        """Log-probabilities per continuation and token: after the prompt, and without it (empty if not asked for)."""
        free = self._continuations if self._free_roots else ()
        return (
            tuple(_read(self._roots[self._band_of(self._heads[0] + len(c))], c) for c in self._continuations),
            tuple(_read(self._free_roots[self._band_of(self._heads[1] + len(c))], c) for c in free),
        )


def _by_band(
    continuations: Tokens[Tokens[int]], head: int, band_of: Callable[[int], int]
) -> dict[int, list[Tokens[int]]]:
    """Continuations by the band of the sequences they end, which begin with `head` tokens."""
    found: dict[int, list[Tokens[int]]] = {}
    for continuation in continuations:
        found.setdefault(band_of(head + len(continuation)), []).append(continuation)
    return found


def _chain(token_ids: Tokens[int]) -> tuple[TrieNode, TrieNode]:
    """Nodes one below the other: the first and the last."""
    first = last = TrieNode(token_ids[0])
    for token in token_ids[1:]:
        below = last.children[token] = TrieNode(token)
        last = below
    return first, last


def _grow(root: TrieNode, continuations: Tokens[Tokens[int]]) -> None:
    for continuation in continuations:
        node = root
        for token in continuation:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = TrieNode(token)
            node = child


def _read(root: TrieNode, continuation: Tokens[int]) -> tuple[float, ...]:
    return tuple(node.logprob for node in _walk(root, continuation))


def _walk(root: TrieNode, continuation: Tokens[int]) -> Iterator[TrieNode]:
    node = root
    for token in continuation:
        node = node.children[token]
        yield node


def _free_edges(root: TrieNode, edge_tokens: int, band: int) -> list[Edge]:
    """Edges of a trie that follows no prompt: below its BOS, or from its first tokens."""
    if not root.children:
        return []
    return _edges([root] if root.token >= 0 else root.inner(), 0, edge_tokens, band)


def _edges(tops: list[TrieNode], start: int, edge_tokens: int, band: int) -> list[Edge]:
    """Chains of nodes that something follows, depth first, none longer than `edge_tokens`."""
    found: list[Edge] = []
    stack: list[tuple[TrieNode, int, Edge | None]] = [(top, start, None) for top in reversed(tops)]
    while stack:
        top, at, parent = stack.pop()
        chain = [top]
        below = top.inner()
        while len(below) == 1 and len(chain) < edge_tokens:
            chain.append(below[0])
            below = below[0].inner()
        edge = Edge(chain, at, parent, band)
        found.append(edge)
        stack += [(child, edge.end, edge) for child in reversed(below)]
    return found


class Sequence:
    """A request in the scheduler. `pages` is handed out by reference in plans; only the scheduler changes it, between steps.

    shares: whether it may take pages from the prefix cache and leave some there.
    prompt_logprobs: how many alternatives per position of the prompt are still wanted; None where none are, or all have come.
    """

    __slots__ = (
        "admitted_s",
        "announced",
        "arrival",
        "arrived_s",
        "band",
        "cached_tokens",
        "computed",
        "ending",
        "key",
        "matched",
        "namespace",
        "own_start",
        "pages",
        "pending_pages",
        "phase",
        "prompt_logprobs",
        "prompt_scores",
        "prompt_tokens",
        "receipt",
        "request",
        "request_id",
        "seq_id",
        "shares",
        "spent_tokens",
        "task",
        "tokens",
        "tree_pages",
    )

    def __init__(
        self, seq_id: int, request: Request, now: float, task: ScoreTask | None, *, band: int, shares: bool
    ) -> None:
        self.seq_id = seq_id
        self.request = request
        self.request_id = request.request_id
        ids = request.prompt_ids
        self.tokens: list[int] = ids.tokens() if isinstance(ids, TokenIds) else list(ids)
        self.key: bytes = (
            ids.packed() if isinstance(ids, TokenIds) else pack(ids)
        )  # of all tokens when it was last queued
        self.prompt_tokens = len(self.tokens)
        self.band = band
        self.namespace = request.namespace.of_band(band)
        self.task = task
        self.shares = shares
        self.prompt_logprobs: int | None = None
        if isinstance(request, GenerateRequest):
            self.shares = shares and not request.no_cache
            self.prompt_logprobs = request.prompt_logprobs
        self.phase: Phase = "waiting"
        self.arrival = seq_id
        self.arrived_s = now
        self.admitted_s: float | None = None
        self.announced = False  # whether "admitted" was reported
        self.cached_tokens = 0
        # What was put through the model for it: prompt and choices, and again what a retraction made it compute again.
        self.spent_tokens = 0
        self.prompt_scores: list[TokenScore | None] | None = None
        self.ending: int | None = None  # it ended while its step was in flight: tokens to keep when that is committed
        self.matched = 0  # tokens that the queue's policy found in the tree in this pass
        self.reset()

    def reset(self) -> None:
        """Holds nothing: before admission, after retraction, after release."""
        self.pages: list[int] = []
        self.tree_pages = 0
        self.pending_pages = 0
        self.computed = 0
        self.own_start = 0
        self.receipt: Receipt | None = None

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def max_new(self) -> int:
        """Tokens it may still generate."""
        return self.request.sampling.most_tokens - self.generated if isinstance(self.request, GenerateRequest) else 0

    @property
    def match_limit(self) -> int:
        """Most tokens a prefix match may take over: one at least is computed, all of them if the prompt is to be scored."""
        return 0 if self.prompt_logprobs is not None else len(self.tokens) - 1


class TokenChunk:
    """Consecutive tokens of one sequence (or of one edge of its trie) that are computed in a step; a chunk becomes a row.

    takers: sequences that sample from its last token. partial_copies, partial_mirrors: how the slots before `start` in its first
    page are filled.
    """

    __slots__ = ("edge", "end", "pages", "partial_copies", "partial_mirrors", "seq", "start", "takers", "token_ids")

    def __init__(
        self, seq: Sequence, token_ids: Tokens[int], start: int, pages: list[int], edge: Edge | None = None
    ) -> None:
        self.seq = seq
        self.token_ids = token_ids
        self.start = start
        self.end = start + len(token_ids)
        self.pages = pages
        self.edge = edge
        self.takers: list[Sequence] = []
        self.partial_copies: list[tuple[int, int]] = []  # (source page, tokens)
        self.partial_mirrors: list[tuple[TokenChunk, int]] = []  # (computing chunk, position)
