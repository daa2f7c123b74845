"""Collects what a step computes, and writes it down as a StepPlan: rows in order, attention levels, what fills partial pages.

Rows stand in depth-first order of the prefix tree. The path of a row are the tree nodes whose pages begin its page table. Rows
that share a node stand next to each other, so an attention level is a run of rows. A level pays from `min_tokens` shared tokens
and two rows on (measured: below that, one level is faster).

A page is never shared across a fork point inside it. The child gets a page of its own, and what its parent has in the first part
of that page is put there, too: copied before the forward pass if it is cached, written twice by the same scatter if it is
computed in this step (also where it ends the prompt of a sibling and is nobody's whole page).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence as Many
from typing import NamedTuple, TypeAlias

from ..cache.keys import TOKEN_BYTES, Namespace, common_bytes
from ..cache.node import TreeNode
from ..cache.tree import RadixTree
from .request import GenerateRequest
from .sequence import Edge, Sequence, TokenChunk, TrieNode
from .step import MirrorWrite, OpenSequence, PageCopy, Row, RowGroup, SamplePoint, ScorePoint, StepPlan

Path: TypeAlias = tuple[tuple[int, int], ...]  # (serial, end in tokens) of nodes, shallowest first


class SharedLevels(NamedTuple):
    """`groups[d]`: level d in row order. `own_starts[i]`: where row i's own level begins."""

    groups: tuple[tuple[RowGroup, ...], ...]
    own_starts: list[int]


def arranged(items: Many[Sequence | TokenChunk], min_tokens: int) -> tuple[list[Sequence | TokenChunk], SharedLevels]:
    """Decoding sequences and chunks in the order of rows, and the levels these share."""
    if len(items) == 1:  # needs no order and shares with nobody
        return list(items), SharedLevels((), [0])
    starts = [item.computed if isinstance(item, Sequence) else item.start for item in items]
    paths = paths_of([_last_shared_node(item) for item in items], starts)
    order = depth_first(paths, starts)
    levels = shared_levels([paths[i] for i in order], [starts[i] for i in order], min_tokens)
    return [items[i] for i in order], levels


def _last_shared_node(item: Sequence | TokenChunk) -> TreeNode | None:
    """Where the pages end that a row may share."""
    seq = item if isinstance(item, Sequence) else item.seq
    alone = isinstance(item, TokenChunk) and item.edge is not None and not item.edge.after_prompt
    return None if alone or seq.receipt is None else seq.receipt.node


def paths_of(nodes: Many[TreeNode | None], starts: Many[int]) -> list[Path]:
    """The paths of rows with these nodes at the end of their shared pages, each from the last node on that all rows of its
    namespace have in common and that ends before any of them begins: nothing above it can make a difference between them.
    """
    tops = _tops(nodes, starts)
    return [() if node is None else _path_from(tops[id(node.namespace)], node) for node in nodes]


def _tops(nodes: Many[TreeNode | None], starts: Many[int]) -> dict[int, TreeNode]:
    """By namespace: the nodes of one share one object."""
    rows: dict[int, tuple[dict[int, TreeNode], int]] = {}
    for node, start in zip(nodes, starts, strict=True):
        if node is not None:
            found, first = rows.get(id(node.namespace)) or ({}, start)
            found[node.serial] = node
            rows[id(node.namespace)] = (found, min(first, start))
    return {namespace: _common_top(list(found.values()), first) for namespace, (found, first) in rows.items()}


def _common_top(nodes: list[TreeNode], first: int) -> TreeNode:
    """The deepest node that is at or above all of these and ends at or before `first`. Looks at what lies below it only."""
    above = nodes[0].parent
    siblings = len(nodes) > 1 and above is not None and all(node.parent is above for node in nodes)
    top = above if siblings and above is not None else _lowest_above(nodes)
    while top.end > first and top.parent is not None:
        top = top.parent
    return top


def _lowest_above(nodes: list[TreeNode]) -> TreeNode:
    seen = {node.serial for node in nodes}
    deepest = [(-node.end, node.serial, node) for node in nodes]
    heapq.heapify(deepest)
    while len(deepest) > 1:
        above = heapq.heappop(deepest)[2].parent
        if above is not None and above.serial not in seen:
            seen.add(above.serial)
            heapq.heappush(deepest, (-above.end, above.serial, above))
    return deepest[0][2]


def _path_from(top: TreeNode, node: TreeNode) -> Path:
    found: list[tuple[int, int]] = []
    at: TreeNode | None = node
    while at is not None and at.parent is not None:
        found.append((at.serial, at.end))
        if at is top:
            break
        at = at.parent
    found.reverse()
    return tuple(found)


def depth_first(paths: Many[Path], starts: Many[int]) -> list[int]:
    """The order of rows: subtree by subtree, and whoever computes a prefix before all that read it.

    Of the branches below a node the one that begins earliest goes first: a row that computes tokens of the node itself begins
    before its end, all others behind it.
    """
    earliest: dict[int, int] = {}
    for path, start in zip(paths, starts, strict=True):
        for serial, _ in path:
            earliest[serial] = min(start, earliest.get(serial, start))
    places = [
        (*((earliest[serial], serial) for serial, _ in path), (start, -1))
        for path, start in zip(paths, starts, strict=True)
    ]
    return sorted(range(len(places)), key=places.__getitem__)


def shared_levels(paths: Many[Path], starts: Many[int], min_tokens: int) -> SharedLevels:
    """The levels of rows in this order. Only nodes that end before a row's own new tokens can be in its levels.

    Each extra level has to add `min_tokens` shared by at least two rows.
    """
    usable = [tuple(step for step in path if step[1] <= start) for path, start in zip(paths, starts, strict=True)]
    own_starts = [0] * len(usable)
    levels: list[list[RowGroup]] = []
    stack = [(0, len(usable), 0, 0, 0)]  # rows [first, end), nodes already common, where the level begins, its depth
    while stack:
        first, end, depth, start, level = stack.pop()
        for run_first, run_end in _runs(usable, first, end, depth):
            common = _common_depth(usable, run_first, run_end, depth)
            shared_end = usable[run_first][common - 1][1]
            next_start, next_level = start, level
            if shared_end - start >= min_tokens:
                while len(levels) <= level:
                    levels.append([])
                levels[level].append(RowGroup(run_first, run_end, start, shared_end))
                own_starts[run_first:run_end] = [shared_end] * (run_end - run_first)
                next_start, next_level = shared_end, level + 1
            stack.append((run_first, run_end, common, next_start, next_level))
    return SharedLevels(tuple(tuple(sorted(groups)) for groups in levels), own_starts)


def _runs(paths: Many[Path], first: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Runs of two or more rows in [first, end) that share their node at `depth`."""
    runs, at = [], first
    while at < end:
        start = at
        at += 1
        if len(paths[start]) <= depth:
            continue
        serial = paths[start][depth][0]
        while at < end and len(paths[at]) > depth and paths[at][depth][0] == serial:
            at += 1
        if at - start > 1:
            runs.append((start, at))
    return runs


def _common_depth(paths: Many[Path], first: int, end: int, depth: int) -> int:
    """How many nodes all rows in [first, end) share, knowing that they share `depth + 1`."""
    common = depth + 1
    longest = min(len(paths[row]) for row in range(first, end))
    while common < longest and len({paths[row][common][0] for row in range(first, end)}) == 1:
        common += 1
    return common


SEED_BYTES = 8


class ScoreTarget(NamedTuple):
    """What a ScorePoint was for: the children of a trie node, or a position of a prompt."""

    seq: Sequence
    node: TrieNode | None
    position: int


class InFlightStep(NamedTuple):
    """A plan that the worker computes now, and what its result will change. scores[key]: what the ScorePoint of this key is for."""

    plan: StepPlan
    decodes: list[Sequence]
    chunks: list[TokenChunk]
    scores: list[ScoreTarget]

    def members(self) -> set[int]:
        """Ids of the sequences it touches."""
        takers = {taker.seq_id for chunk in self.chunks for taker in chunk.takers}
        return takers | {chunk.seq.seq_id for chunk in self.chunks} | {seq.seq_id for seq in self.decodes}


class DecodeBatch(NamedTuple):
    """Decoding sequences in row order, with the levels they share: stays true until one joins or leaves."""

    order: list[Sequence]
    groups: tuple[tuple[RowGroup, ...], ...]

    @classmethod
    def of(cls, decodes: list[Sequence], min_tokens: int) -> DecodeBatch:
        """Order them and find their levels; each is told where its own level begins."""
        order, levels = arranged(decodes, min_tokens)
        sequences = [seq for seq in order if isinstance(seq, Sequence)]
        for seq, own_start in zip(sequences, levels.own_starts, strict=True):
            seq.own_start = own_start
        return cls(sequences, levels.groups)

    def step(self, number: int, closes: Many[int]) -> InFlightStep:
        """A step in which every sequence decodes one token, and nothing else happens."""
        order = self.order
        rows = [Row(s.seq_id, s.tokens[-1:], s.computed, s.pages, s.own_start, s.band) for s in order]
        samples = [SamplePoint(row, 0, s.seq_id, len(s.tokens) - s.prompt_tokens) for row, s in enumerate(order)]
        return InFlightStep(StepPlan(number, rows, self.groups, (), (), (), closes, samples), order, [], [])


class StepBuilder:
    """One step in the making. Chunks may share with chunks added before.

    tokens: what the chunks have together. writers: the chunk that computes a sequence's own tokens, and so fills its pending
    nodes. finals: by namespace and key, the chunk that ends where a whole prompt ends; another of the same prompt can sample there.
    """

    def __init__(self, page_size: int) -> None:
        self.chunks: list[TokenChunk] = []
        self.tokens = 0
        self.writers: dict[int, TokenChunk] = {}
        self.finals: dict[tuple[Namespace, bytes], TokenChunk] = {}
        self._page = page_size
        self._opens: list[OpenSequence] = []
        self._by_edge: dict[int, TokenChunk] = {}
        self._open_pages: dict[int, list[TokenChunk]] = {}  # by the node below which a sibling would find them
        self._copies: list[PageCopy] = []
        self._mirrors: list[tuple[TokenChunk, int, int]] = []

    def open(self, seq: Sequence) -> None:
        """The worker has to know this sequence before its first row. A request that brought no seed gets one of its own id."""
        request = seq.request
        if not isinstance(request, GenerateRequest):
            return
        seed = request.sampling.seed
        if seed is None:
            digest = hashlib.blake2b(request.request_id.encode(), digest_size=SEED_BYTES).digest()
            seed = int.from_bytes(digest, "little")
        known = tuple(seq.tokens[seq.prompt_tokens :])
        self._opens.append(
            OpenSequence(
                seq.seq_id,
                request.prompt_ids,
                request.sampling,
                request.constraint,
                seed,
                known,
                request.label,
                request.request_id,
            )
        )

    def add(self, seq: Sequence, end: int) -> TokenChunk:
        """Compute `seq` from where it stands to `end`; it samples if that is all of it."""
        chunk = TokenChunk(seq, seq.tokens[seq.computed : end], seq.computed, seq.pages)
        self.chunks.append(chunk)
        self.tokens += len(chunk.token_ids)
        self.writers[seq.seq_id] = chunk
        if end == len(seq.tokens) and seq.task is None:
            chunk.takers.append(seq)
            if seq.receipt is not None:
                self.finals[seq.namespace, seq.key] = chunk
        return chunk

    def add_edge(self, seq: Sequence, edge: Edge) -> None:
        """Compute one edge of the sequence's trie."""
        chunk = TokenChunk(seq, [node.token for node in edge.nodes], edge.start, edge.table, edge)
        self.chunks.append(chunk)
        self.tokens += len(chunk.token_ids)
        self._by_edge[id(edge)] = chunk
        if edge.start % self._page:
            above = self._by_edge.get(id(edge.parent)) if edge.parent else self.writers.get(seq.seq_id)
            if above is not None:
                self.share_partial_page(above, chunk.pages[edge.start // self._page], edge.start, chunk)
            else:
                table = edge.parent.table if edge.parent else seq.pages
                self._copy_partial_page(table[edge.start // self._page], chunk, edge.start % self._page)

    # Partial pages

    def leave_open(self, chunk: TokenChunk) -> None:
        """`chunk` ends inside a page: siblings that go on below its last whole page may begin with what it has there."""
        receipt, whole = chunk.seq.receipt, chunk.end - chunk.end % self._page
        if receipt is not None and chunk.end > whole == receipt.node.end:
            self._open_pages.setdefault(receipt.node.serial, []).append(chunk)

    def find_partial_page(self, seq: Sequence, tree: RadixTree) -> PartialPage | None:
        """The longest match inside the page after what `seq` has matched; None if there is none."""
        if seq.receipt is None or seq.task is not None or seq.prompt_logprobs is not None:
            return None
        node = seq.receipt.node
        found = self._longest_open_page(node, seq.key, seq.match_limit)
        cached = tree.overlap(node, seq.key, seq.match_limit)
        if cached is None or (found is not None and cached.tokens <= found.tokens):
            return found
        child = cached.child
        if child.pending:
            return PartialPage(cached.tokens, self.writers[child.writer], None)
        return PartialPage(cached.tokens, None, child)

    def fill_partial_page(self, partial: PartialPage, chunk: TokenChunk) -> None:
        """Write down how the slots before `chunk` are filled."""
        if partial.chunk is not None:
            self.share_partial_page(partial.chunk, chunk.pages[chunk.start // self._page], chunk.start, chunk)
        elif partial.node is not None:
            self._copy_partial_page(partial.node.pages[0], chunk, partial.tokens)

    def share_partial_page(self, above: TokenChunk, page: int, upto: int, chunk: TokenChunk | None) -> None:
        """`page` gets what `above` puts before `upto` into the page of that position; `chunk`, if given, goes on there."""
        first = upto - upto % self._page
        copies = [(source, min(tokens, upto - first)) for source, tokens in above.partial_copies if above.start > first]
        mirrors = [(by, at) for by, at in above.partial_mirrors if first <= at < upto]
        mirrors += [(above, at) for at in range(max(first, above.start), upto)]
        self._copies += [PageCopy(source, page, tokens) for source, tokens in copies]
        self._mirrors += [(by, at, page) for by, at in mirrors]
        if chunk is not None:
            chunk.partial_copies += copies
            chunk.partial_mirrors += mirrors

    def _copy_partial_page(self, source: int, chunk: TokenChunk, tokens: int) -> None:
        """The first `tokens` slots of the chunk's first page are those of page `source`."""
        chunk.partial_copies.append((source, tokens))
        self._copies.append(PageCopy(source, chunk.pages[chunk.start // self._page], tokens))

    def _longest_open_page(self, node: TreeNode, key: bytes, limit_tokens: int) -> PartialPage | None:
        """The chunk whose last, open page begins with most of `key[node.end : limit_tokens]`."""
        start, end = node.end * TOKEN_BYTES, min(len(key), limit_tokens * TOKEN_BYTES)
        best: PartialPage | None = None
        for chunk in self._open_pages.get(node.serial, ()) if end > start else ():
            tokens = common_bytes(chunk.seq.key[start : chunk.end * TOKEN_BYTES], key, start, end) // TOKEN_BYTES
            if tokens > (best.tokens if best is not None else 0):
                best = PartialPage(tokens, chunk, None)
        return best

    # The plan

    def build(self, step: int, decodes: list[Sequence], closes: Many[int], min_tokens: int) -> InFlightStep:
        """The plan, and what has to be remembered until its result is committed."""
        items, levels = arranged([*decodes, *self.chunks], min_tokens)
        rows: list[Row] = []
        samples: list[SamplePoint] = []
        points: list[ScorePoint] = []
        targets: list[ScoreTarget] = []
        row_of: dict[int, int] = {}
        for row, (item, own_start) in enumerate(zip(items, levels.own_starts, strict=True)):
            if isinstance(item, Sequence):
                rows.append(Row(item.seq_id, item.tokens[-1:], item.computed, item.pages, own_start, item.band))
                samples.append(SamplePoint(row, 0, item.seq_id, item.generated))
                continue
            seq, ids = item.seq, item.token_ids
            row_of[id(item)] = row
            band = item.edge.band if item.edge is not None else seq.band
            rows.append(Row(seq.seq_id, ids, item.start, item.pages, own_start, band))
            samples += [
                SamplePoint(row, len(ids) - 1, taker.seq_id, len(taker.tokens) - taker.prompt_tokens)
                for taker in item.takers
            ]
            if seq.task is not None or seq.prompt_logprobs is not None:
                _add_score_points(item, row, points, targets)
        mirrors = [MirrorWrite(row_of[id(by)], at, page, at % self._page) for by, at, page in self._mirrors]
        plan = StepPlan(step, rows, levels.groups, self._copies, mirrors, self._opens, closes, samples, points)
        return InFlightStep(plan, decodes, self.chunks, targets)


class PartialPage(NamedTuple):
    """`tokens` of a page that need not be computed: `chunk` computes them in this step, or `node`'s first page has them."""

    tokens: int
    chunk: TokenChunk | None
    node: TreeNode | None


def _add_score_points(chunk: TokenChunk, row: int, points: list[ScorePoint], targets: list[ScoreTarget]) -> None:
    """Score what follows each token of a trie edge, of the prompt of a ScoreRequest, or of a prompt to be scored."""
    seq = chunk.seq
    if seq.task is None:
        for offset, position in enumerate(range(chunk.start + 1, min(chunk.end + 1, seq.prompt_tokens))):
            points.append(ScorePoint(row, offset, (seq.tokens[position],), seq.prompt_logprobs or 0, len(targets)))
            targets.append(ScoreTarget(seq, None, position))
        return
    nodes: list[tuple[int, TrieNode]] = []
    if chunk.edge is not None:
        nodes = list(enumerate(chunk.edge.nodes))
    elif chunk.end == len(seq.tokens):
        nodes = [(len(chunk.token_ids) - 1, seq.task.root)]
    for offset, node in nodes:
        if node.children:
            points.append(ScorePoint(row, offset, tuple(node.children), 0, len(targets)))
            targets.append(ScoreTarget(seq, node, -1))
