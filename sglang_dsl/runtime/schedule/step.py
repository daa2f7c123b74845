"""One step between scheduler and worker, as integers: what to run, and what came out.

Rows stand in depth-first order of the prefix tree. A row computes `token_ids` at positions start, start+1, ...; its page
table covers [0, start + len(token_ids)). Every layer first scatters all new K/V of the step into the pool, then attends,
so a row may read what a row of the same step writes (design.md, 5.3).

    positions      0 ........ a ............ b ........ start ..... end
    level 0        |==========|                                        shared by a group of rows, not causal
    level 1                   |==============|                         shared by a smaller group, not causal
    the row's own                            |=========|###########|   causal, over its own page table
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...ir.outcome import TokenScore
from ...ir.specs import ConstraintSpec, SamplingSpec
from .request import Label


class Row(NamedTuple):
    """`pages[i]` holds positions [i*S, (i+1)*S). `own_start`: first position of the row's own level (a page boundary)."""

    seq_id: int
    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    own_start: int = 0
    band: int = 0  # which of the model's bands of lengths the sequence is in: how its positions are rotated


class RowGroup(NamedTuple):
    """Rows [first_row, end_row) all attend to positions [start, end) through the pages of row `first_row`. Both are page boundaries."""

    first_row: int
    end_row: int
    start: int
    end: int


class PageCopy(NamedTuple):
    """Before the forward: the first `tokens` slots of page `source` are copied to page `target`."""

    source: int
    target: int
    tokens: int


class MirrorWrite(NamedTuple):
    """The K/V computed by row `row` at `position` is written to (page, offset), too: into the first page of a sequence that forks
    off inside a page.
    """

    row: int
    position: int
    page: int
    offset: int


class OpenSequence(NamedTuple):
    """A sequence begins (or comes back after retraction, with `generated` already accepted by its matcher)."""

    seq_id: int
    prompt_ids: Sequence[int]
    sampling: SamplingSpec
    constraint: ConstraintSpec | None
    seed: int
    generated: Sequence[int] = ()
    label: Label = Label()
    request_id: str = ""


class SamplePoint(NamedTuple):
    """Sample the next token of `seq_id` from the logits at `offset` within row `row`; several points may share a row.

    generated: how many tokens the sequence has generated so far (enters the seed).
    """

    row: int
    offset: int
    seq_id: int
    generated: int


class ScorePoint(NamedTuple):
    """Log-probabilities of `token_ids` as the next token at `offset` within row `row`; `top`: and of the best so many.

    `key` comes back unchanged in the result.
    """

    row: int
    offset: int
    token_ids: Sequence[int]
    top: int
    key: int


class StepPlan(NamedTuple):
    """Everything the worker needs. `levels[d]` lists the groups of attention level d (outermost first), in row order;
    `closes` (the worker need not know them all) happen first, then `opens`, copies, forward, samples, scores.
    """

    step: int
    rows: Sequence[Row]
    levels: Sequence[Sequence[RowGroup]] = ()
    copies: Sequence[PageCopy] = ()
    mirrors: Sequence[MirrorWrite] = ()
    opens: Sequence[OpenSequence] = ()
    closes: Sequence[int] = ()
    samples: Sequence[SamplePoint] = ()
    scores: Sequence[ScorePoint] = ()


class Sampled(NamedTuple):
    """One sampled token. ended: the constraint is complete and nothing may follow. score: only if the sampling asked for
    logprobs. error: this row could not be sampled (all masked, ...); token_id is then -1.
    """

    seq_id: int
    token_id: int
    ended: bool = False
    score: TokenScore | None = None
    error: Exception | None = None


class Scored(NamedTuple):
    """Answer to a ScorePoint: `logprobs` follow its token_ids; `top`: (id, logprob), best first."""

    key: int
    logprobs: Sequence[float]
    top: Sequence[tuple[int, float]] = ()


class StepResult(NamedTuple):
    """What came out, in the order of the plan's samples and scores. elapsed_s: what the step took on the worker
    (measured, or the mock's cost model).
    """

    samples: Sequence[Sampled] = ()
    scores: Sequence[Scored] = ()
    elapsed_s: float = 0.0
